// What happens to a tile's sums before they leave the registers. Thread (g, t) of a warp holds in
// sums[4 j + e] row g + 8 (e / 2), column 8 j + 2 t + e % 2 of its warp's 16 rows (hopper.cuh).
// What that needs from memory, Ahead, is asked for before the products of the tile.
#pragma once

#include "backends/cuda/device/instructions.cuh"
#include "backends/cuda/prefill/prefill_plan.h"
#include "kv/ledger.h"

namespace loopspec::cuda {

// Four lanes with two columns each of four groups of eight columns, v[group], become four lanes
// with one whole group each: lane t has group t, 16 bytes in a row.
__device__ __forceinline__ uint4 GatherGroups(uint32_t v0, uint32_t v1, uint32_t v2, uint32_t v3) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
  // Between lanes t and t ^ 1: groups of the other's parity for the other's columns.
  const uint32_t a = __shfl_xor_sync(0xFFFFFFFFu, odd ? v0 : v1, 1);
  const uint32_t b = __shfl_xor_sync(0xFFFFFFFFu, odd ? v2 : v3, 1);
  const uint32_t w0 = odd ? a : v0, w1 = odd ? v1 : a;  // groups 0 or 1, lanes even, odd
  const uint32_t w2 = odd ? b : v2, w3 = odd ? v3 : b;  // groups 2 or 3
  // Between lanes t and t ^ 2.
  const uint32_t c = __shfl_xor_sync(0xFFFFFFFFu, high ? w0 : w2, 2);
  const uint32_t d = __shfl_xor_sync(0xFFFFFFFFu, high ? w1 : w3, 2);
  return high ? make_uint4(c, d, w2, w3) : make_uint4(w0, w1, c, d);
}

// a and b, which stand half a head apart, turned by (cosine, sine). Written so that every instance
// rounds in the same places.
__device__ __forceinline__ float TurnLow(float a, float b, float cosine, float sine) {
  return fmaf(a, cosine, -__fmul_rn(b, sine));
}
__device__ __forceinline__ float TurnHigh(float a, float b, float cosine, float sine) {
  return fmaf(b, cosine, __fmul_rn(a, sine));
}

struct StoreSums {
  static constexpr int kStep = 16;  // columns that are stored together
  float* out;                       // [rows, ld], ld a multiple of 4
  int ld;

  struct Ahead {};
  __device__ __forceinline__ Ahead Load(int, int) const { return {}; }

  template <int kCount>
  __device__ __forceinline__ void Store(const float (&sums)[kCount], const Ahead&, int row,
                                        int rows, int column, int outputs) const {
    // Lanes t and t ^ 1 exchange halves of two groups of eight columns, so that each has four
    // columns of one group, and the four lanes of a row write 64 bytes in a row.
    const int t = threadIdx.x % 4;
    const bool odd = t & 1;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float* to = out + static_cast<size_t>(row + 8 * i) * ld;
#pragma unroll
      for (int j = 0; j < kCount / 4; j += 2) {
        const float* a = &sums[4 * j + 2 * i];
        const float* b = a + 4;
        const float x = __shfl_xor_sync(0xFFFFFFFFu, odd ? a[0] : b[0], 1);
        const float y = __shfl_xor_sync(0xFFFFFFFFu, odd ? a[1] : b[1], 1);
        const float4 v = odd ? make_float4(x, y, b[0], b[1]) : make_float4(a[0], a[1], x, y);
        const int at = column + 8 * j + (odd ? 8 : 0) + 2 * (t & 2);
        if (row + 8 * i >= rows) continue;
        if (at + 4 <= outputs) {
          *reinterpret_cast<float4*>(to + at) = v;
        } else {
          if (at < outputs) to[at] = v.x;
          if (at + 1 < outputs) to[at + 1] = v.y;
          if (at + 2 < outputs) to[at + 2] = v.z;
        }
      }
    }
  }
};

struct StoreSwiGlu {
  static constexpr int kStep = 64;
  bf16* out;  // [rows, ld]
  int ld;

  struct Ahead {};
  __device__ __forceinline__ Ahead Load(int, int) const { return {}; }

  template <int kCount>
  __device__ __forceinline__ void Store(const float (&sums)[kCount], const Ahead&, int row,
                                        int rows, int column, int outputs) const {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < kCount / 4; j += 8) {  // 64 columns make 32 outputs
        uint32_t v[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float* gate = &sums[4 * (j + 2 * k) + 2 * i];
          const float* up = gate + 4;
          v[k] = PackBF16(Gated(gate[0], up[0]), Gated(gate[1], up[1]));
        }
        const uint4 group = GatherGroups(v[0], v[1], v[2], v[3]);
        const int from = column + 8 * j + 16 * t;  // of the group's gate
        if (row + 8 * i < rows && from < outputs) {
          *reinterpret_cast<uint4*>(out + static_cast<size_t>(row + 8 * i) * ld + from / 2) = group;
        }
      }
    }
  }
};

// For head_dim 64 and 128, which is head_stride too: 64 columns never span two heads.
template <int kHead>
struct StoreQkv {
  static constexpr int kStep = 64;
  const PromptRow* rows_info;
  const float2* rope;  // [row][kHead / 2]
  bf16* q;             // [row][heads][kHead]
  bf16* pages;
  int heads, kv_heads, plane;

  static constexpr int kHalf = kHead / 2;
  struct Ahead {
    int64_t place[2];
    // Cosine and sine of two elements each: 8 k + 2 t of this thread's two rows.
    float4 turns[2][kHalf / 8];
  };
  __device__ __forceinline__ Ahead Load(int row, int rows) const {
    Ahead ahead;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = min(row + 8 * i, rows - 1);
      ahead.place[i] = rows_info[at].place;
      const float2* turns = rope + static_cast<size_t>(at) * kHalf + 2 * (threadIdx.x % 4);
#pragma unroll
      for (int k = 0; k < kHalf / 8; ++k)
        ahead.turns[i][k] = *reinterpret_cast<const float4*>(turns + 8 * k);
    }
    return ahead;
  }

  template <int kCount>
  __device__ __forceinline__ void Store(const float (&sums)[kCount], const Ahead& ahead, int row,
                                        int rows, int column, int outputs) const {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = row + 8 * i;
#pragma unroll
      for (int j = 0; j < kCount / 4; j += 8) {
        const int from = column + 8 * j;
        if (from >= outputs) continue;
        const int head = from / kHead;
        const bool value = head >= heads + kv_heads;
        bf16* to = head < heads
                       ? q + (static_cast<size_t>(at) * heads + head) * kHead
                       : pages + ahead.place[i] +
                             static_cast<int64_t>(
                                 (plane * kv_heads + (head - heads - (value ? kv_heads : 0))) * 2 +
                                 (value ? 1 : 0)) *
                                 (kPageSize * kHead);
        // The first or the second 64 columns of a head of 128.
        const bool second_part = kHead == 128 && from % kHead != 0;
        uint32_t low[4], high[4];
        int low_at, high_at;  // elements of the head
        if (value) {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const float* a = &sums[4 * (j + k) + 2 * i];
            const float* b = &sums[4 * (j + 4 + k) + 2 * i];
            low[k] = PackBF16(a[0], a[1]);
            high[k] = PackBF16(b[0], b[1]);
          }
          low_at = second_part ? 64 : 0;
          high_at = low_at + 32;
        } else {
          low_at = second_part ? 32 : 0;
          high_at = low_at + kHalf;
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const float* a = &sums[4 * (j + 2 * k) + 2 * i];  // elements, and those half a head on
            const float* b = a + 4;
            float4 turn = ahead.turns[i][k];
            if constexpr (kHead == 128) {
              if (second_part) turn = ahead.turns[i][k + 4];
            }
            low[k] =
                PackBF16(TurnLow(a[0], b[0], turn.x, turn.y), TurnLow(a[1], b[1], turn.z, turn.w));
            high[k] = PackBF16(TurnHigh(a[0], b[0], turn.x, turn.y),
                               TurnHigh(a[1], b[1], turn.z, turn.w));
          }
        }
        const uint4 first = GatherGroups(low[0], low[1], low[2], low[3]);
        const uint4 second = GatherGroups(high[0], high[1], high[2], high[3]);
        if (at < rows) {
          *reinterpret_cast<uint4*>(to + low_at + 8 * t) = first;
          *reinterpret_cast<uint4*>(to + high_at + 8 * t) = second;
        }
      }
    }
  }
};

}  // namespace loopspec::cuda

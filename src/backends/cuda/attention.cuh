// Attention of a few queries to many positions, one warp at a time, on matrix instructions straight from memory.
//
// Up to 16 queries are the long side of the instruction, positions the short one: S = Q K^T in pieces of 8 positions. The
// fragment of S that a thread holds is, rounded to bf16, the fragment of P that P V needs; values of neighbouring positions
// are loaded by rows like keys and interleaved in registers. A thread needs no more than a pointer to each position's key
// and value, so it makes no difference to any bit whether a position lies in a page or in a cell.
#pragma once

#include "backends/cuda/block_context.cuh"
#include "backends/cuda/device_ops.cuh"
#include "backends/cuda/step_types.h"
#include "kv/ledger.h"

namespace loopspec::cuda {

// Key and value of one position; both have head_stride elements.
struct KeyValue {
  const bf16* key;
  const bf16* value;
};

template <int kHead>
struct AttentionState {
  static constexpr int kParts = kHead / 32;
  // Values: a thread loads kVector elements of a row; eight threads cover a group of columns. Column kVector n + i of a
  // group is column n of the i-th product.
  static constexpr int kVector = kHead >= 64 ? 8 : 4;
  static constexpr int kGroups = kHead / (8 * kVector);
  uint4 q[kParts][2];                // queries g and g + 8: elements 32 c + 8 t ... + 7
  float o[kGroups][kVector][4];
  float maximum[2], sum[2];

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o[c][i][e] = 0.0f;
      }
    }
    maximum[0] = maximum[1] = __int_as_float(0xFF800000);
    sum[0] = sum[1] = 0.0f;
  }

  // Positions base ... base + 63; locate(p) says where position p lies. A query sees positions up to its own (last0 for
  // query g, last1 for g + 8).
  template <typename Locate>
  __device__ __forceinline__ void Update(const Locate& locate, int base, int last0, int last1, float scale) {
    constexpr int kPieces = kAttentionBlock / 8;
    float s[kPieces][4] = {};
    Scores(locate, base, s);
    const int t = threadIdx.x % 4;
    float top[2] = {maximum[0], maximum[1]};
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const int position = base + 8 * j + 2 * t;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int last = e < 2 ? last0 : last1;
        s[j][e] = position + (e & 1) <= last ? s[j][e] * scale : __int_as_float(0xFF800000);
        top[e / 2] = fmaxf(top[e / 2], s[j][e]);
      }
    }
    float shrink[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      top[i] = fmaxf(top[i], __shfl_xor_sync(0xFFFFFFFFu, top[i], 1));
      top[i] = fmaxf(top[i], __shfl_xor_sync(0xFFFFFFFFu, top[i], 2));
      // A query with no position yet (padding of the tile) must not turn into NaN.
      const float finite = top[i] == __int_as_float(0xFF800000) ? 0.0f : top[i];
      shrink[i] = exp2f(maximum[i] - finite);
      maximum[i] = top[i];
      top[i] = finite;
    }
    float added[2] = {0.0f, 0.0f};
    uint32_t p[kPieces][2];
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[j][e] = exp2f(s[j][e] - top[e / 2]);
        added[e / 2] += s[j][e];
      }
      p[j][0] = PackBF16(s[j][0], s[j][1]);
      p[j][1] = PackBF16(s[j][2], s[j][3]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      added[i] += __shfl_xor_sync(0xFFFFFFFFu, added[i], 1);
      added[i] += __shfl_xor_sync(0xFFFFFFFFu, added[i], 2);
      sum[i] = sum[i] * shrink[i] + added[i];
    }
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o[c][i][e] *= shrink[e / 2];
      }
    }
    AddValues(locate, base, p);
  }

  // This thread's 2 kVector neighbouring outputs of group c, for query g (i = 0) or g + 8 (i = 1): the first is element
  // FirstOutput(c).
  __device__ __forceinline__ float Output(int c, int i, int k) const { return o[c][k % kVector][2 * i + k / kVector]; }
  static __device__ __forceinline__ int FirstOutput(int c) {
    return (c * 8 + 2 * static_cast<int>(threadIdx.x % 4)) * kVector;
  }

 private:
  template <typename Locate, int kPieces>
  __device__ __forceinline__ void Scores(const Locate& locate, int base, float (&s)[kPieces][4]) const {
    // Pieces of 8 positions whose keys are under way at once: as many as the registers hold.
    constexpr int kKeys = kHead <= 64 ? kPieces : kHead <= 128 ? kPieces / 2 : kPieces / 4;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int first = 0; first < kPieces; first += kKeys) {
      uint4 k[kKeys][kParts];
#pragma unroll
      for (int j = 0; j < kKeys; ++j) {
        const bf16* key = locate(base + 8 * (first + j) + g).key + t * 8;
#pragma unroll
        for (int c = 0; c < kParts; ++c) k[j][c] = LoadCoherent16(key + c * 32);
      }
#pragma unroll
      for (int c = 0; c < kParts; ++c) {
#pragma unroll
        for (int j = 0; j < kKeys; ++j) Mma32(s[first + j], q[c][0], q[c][1], k[j][c]);
      }
    }
  }

  template <typename Locate, int kPieces>
  __device__ __forceinline__ void AddValues(const Locate& locate, int base, const uint32_t (&p)[kPieces][2]) {
    constexpr int kWords = kVector / 2;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    // Steps of 16 positions whose values are under way at once.
    constexpr int kAtOnce = kHead <= 64 ? kPieces / 2 : kHead <= 128 ? 2 : 1;
#pragma unroll
    for (int first = 0; first < kPieces / 2; first += kAtOnce) {
      uint32_t v[kAtOnce][4][kGroups][kWords];
#pragma unroll
      for (int step = 0; step < kAtOnce; ++step) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {  // positions 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of the step
          const bf16* value = locate(base + 16 * (first + step) + 2 * t + (r & 1) + (r & 2) * 4).value + g * kVector;
#pragma unroll
          for (int c = 0; c < kGroups; ++c) LoadWords(value + c * 8 * kVector, v[step][r][c]);
        }
      }
#pragma unroll
      for (int step = 0; step < kAtOnce; ++step) {
        const int j = 2 * (first + step);
#pragma unroll
        for (int c = 0; c < kGroups; ++c) {
#pragma unroll
          for (int i = 0; i < kVector; ++i) {
            // Element i of two neighbouring positions side by side.
            const uint32_t select = i % 2 == 0 ? 0x5410u : 0x7632u;
            const uint32_t b0 = __byte_perm(v[step][0][c][i / 2], v[step][1][c][i / 2], select);
            const uint32_t b1 = __byte_perm(v[step][2][c][i / 2], v[step][3][c][i / 2], select);
            Mma(o[c][i], p[j][0], p[j][1], p[j + 1][0], p[j + 1][1], b0, b1);
          }
        }
      }
    }
  }

  static __device__ __forceinline__ void LoadWords(const bf16* from, uint32_t (&to)[4]) {
    const uint4 v = LoadCoherent16(from);
    to[0] = v.x;
    to[1] = v.y;
    to[2] = v.z;
    to[3] = v.w;
  }
  static __device__ __forceinline__ void LoadWords(const bf16* from, uint32_t (&to)[2]) {
    const uint2 v = __ldcg(reinterpret_cast<const uint2*>(from));
    to[0] = v.x;
    to[1] = v.y;
  }
};

// The page of a position holds [plane][kv_head][2][kPageSize][head_stride].
__device__ inline KeyValue InPage(const DecodeParams& p, int page, int plane, int head, int slot) {
  const bf16* at = p.page_kv + ((static_cast<size_t>(page) * p.planes + plane) * p.kv_heads + head) *
                                   (2 * kPageSize * p.head_stride);
  return {at + slot * p.head_stride, at + (kPageSize + slot) * p.head_stride};
}
// One unit: the rows' query heads that share KV head `head`, over one split. Leaves partial results. kPaged: all of the
// split's positions lie in pages.
template <int kHead, bool kPaged>
__device__ __noinline__ void AttendUnit(const AttentionUnit* which, int head, int plane_offset) {
  const BlockContext& context = Context();
  const DecodeParams& p = context.p;
  const AttentionUnit unit = *which;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int group = p.heads / p.kv_heads;
  const int queries = unit.count * group;
  const int begin = unit.split * p.split;
  const int end = kPaged ? begin + p.split : min(begin + p.split, unit.position + 1);
  const size_t head_at = static_cast<size_t>(unit.plane + plane_offset) * p.kv_heads + head;
  const size_t heads = static_cast<size_t>(p.planes) * p.kv_heads;
  const bf16* pages[kSplitPages];
#pragma unroll
  for (int i = 0; i < kSplitPages; ++i) {
    pages[i] = p.page_kv + (static_cast<size_t>(unit.pages[i]) * heads + head_at) * (2 * kPageSize * kHead);
  }

  const auto locate = [&](int position) -> KeyValue {
    if (!kPaged) position = min(position, unit.position);
    if (kPaged || position < unit.committed) {
      const int i = position - begin;
      const bf16* at = (i < kPageSize ? pages[0] : pages[1]) + i % kPageSize * kHead;
      return {at, at + kPageSize * kHead};
    }
    const int cell = position == unit.position ? unit.cell : context.chains[unit.chain + position - unit.committed];
    const bf16* at = p.cell_kv + (static_cast<size_t>(cell) * heads + head_at) * (2 * kHead);
    return {at, at + kHead};
  };

  for (int first = 0; first < queries; first += 16) {
    AttentionState<kHead> state;
    state.Clear();
    int slot[2], last[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = first + g + 8 * i;
      QueryRow row{unit.row, unit.partial, unit.position};
      if (unit.count > 1 && query < queries) row = context.set.query_rows[unit.first + query / group];
      const int query_head = head * group + query % group;
      const bool there = query < queries;
      slot[i] = there ? (row.partial + unit.split) * p.heads + query_head : -1;
      last[i] = row.position;
      const bf16* source = p.q + (static_cast<size_t>(row.row) * p.heads + query_head) * kHead + t * 8;
#pragma unroll
      for (int c = 0; c < kHead / 32; ++c) {
        state.q[c][i] = there ? LoadCoherent16(source + c * 32) : make_uint4(0, 0, 0, 0);
      }
    }
    for (int base = begin; base < end; base += kAttentionBlock) {
      // Values, and the second half of the keys, are on their way while the first keys are loaded.
      if (kPaged && first == 0) {
        const bf16* at = base - begin < kPageSize ? pages[0] : pages[1];
        constexpr int kLines = kPageSize * kHead / 64;  // of 128 bytes, in the keys or values of a page
        for (int line = lane; line < kLines; line += 32) {
          Prefetch(at + (kPageSize * kHead + line * 64));
          if (kHead > 64 && line >= kLines / 2) Prefetch(at + line * 64);
        }
      }
      state.Update(locate, base, last[0], last[1], p.attention_scale);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (slot[i] < 0) continue;
#pragma unroll
      for (int c = 0; c < state.kGroups; ++c) {
        auto* to = reinterpret_cast<float4*>(p.attention_o + static_cast<size_t>(slot[i]) * kHead + state.FirstOutput(c));
#pragma unroll
        for (int k = 0; k < 2 * state.kVector; k += 4) {
          to[k / 4] = make_float4(state.Output(c, i, k), state.Output(c, i, k + 1), state.Output(c, i, k + 2),
                                  state.Output(c, i, k + 3));
        }
      }
      if (t == 0) p.attention_ml[slot[i]] = make_float2(state.maximum[i], state.sum[i]);
    }
  }
}

template <int kHead>
__device__ __forceinline__ void Attend(const AttentionUnit* unit, int head, int plane_offset) {
  if ((unit->split + 1) * Context().p.split <= unit->committed) {
    AttendUnit<kHead, true>(unit, head, plane_offset);
  } else {
    AttendUnit<kHead, false>(unit, head, plane_offset);
  }
}

// Piece i of attention is head i % kv_heads of unit i / kv_heads; neighbouring pieces go to different multiprocessors.
__device__ __forceinline__ int FirstPiece() { return static_cast<int>(blockIdx.x + gridDim.x * (threadIdx.x / 32)); }
__device__ __forceinline__ int PieceStride() { return static_cast<int>(gridDim.x) * kWarps; }

// Keeps the units of the warp's first pieces at hand: they are the same in every layer.
__device__ __forceinline__ void CacheUnits() {
  BlockContext& context = Context();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  constexpr int kWords = sizeof(AttentionUnit) / sizeof(uint32_t);
#pragma unroll
  for (int n = 0; n < kCachedUnits; ++n) {
    const int piece = FirstPiece() + n * PieceStride();
    if (piece < context.set.units * context.p.kv_heads && lane < kWords) {
      reinterpret_cast<uint32_t*>(&context.unit_cache[warp][n])[lane] =
          reinterpret_cast<const uint32_t*>(context.set.all_units + piece / context.p.kv_heads)[lane];
    }
  }
  __syncwarp();
}

__device__ __forceinline__ void AttentionOp(const Op& op) {
  const BlockContext& context = Context();
  const int kv_heads = context.p.kv_heads;
  const int plane_offset = op.layer + context.set.recurrence * context.p.core_layers;
  const int total = context.set.units * kv_heads;
  int n = 0;
  for (int i = FirstPiece(); i < total; i += PieceStride(), ++n) {
    const AttentionUnit* unit =
        n < kCachedUnits ? &context.unit_cache[threadIdx.x / 32][n] : context.set.all_units + i / kv_heads;
    switch (context.p.head_stride) {
      case 32: Attend<32>(unit, i % kv_heads, plane_offset); break;
      case 64: Attend<64>(unit, i % kv_heads, plane_offset); break;
      case 128: Attend<128>(unit, i % kv_heads, plane_offset); break;
      default: Attend<256>(unit, i % kv_heads, plane_offset); break;
    }
  }
}

// Adds up a row's splits in order and rounds to the next matrix's input. A warp takes 32 elements of a head.
__device__ __noinline__ inline void MergeOp() {
  const DecodeParams& p = Context().p;
  const RowInfo* infos = Context().set.infos;
  const int rows = Context().set.rows;
  const int lane = threadIdx.x % 32;
  const int parts = (p.head_dim + 31) / 32;
  const int total = rows * p.heads * parts;
  const int stride = static_cast<int>(gridDim.x) * kWarps;
  for (int i = static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) * static_cast<int>(threadIdx.x / 32); i < total;
       i += stride) {
    const int row = i / (p.heads * parts), head = i / parts % p.heads, element = i % parts * 32 + lane;
    const int first = infos[row].partial, splits = infos[row].splits;
    const float2* ml = p.attention_ml + static_cast<size_t>(first) * p.heads + head;
    const float* o = p.attention_o + (static_cast<size_t>(first) * p.heads + head) * p.head_stride + element;
    // A lane looks at every 32nd split's maximum and sum; the outputs are added in the order of the splits.
    float top = __int_as_float(0xFF800000);
    for (int s = lane; s < splits; s += 32) top = fmaxf(top, __ldcg(ml + static_cast<size_t>(s) * p.heads).x);
    for (int mask = 1; mask < 32; mask <<= 1) top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, mask));
    float sum = 0.0f, value = 0.0f;
    const size_t stride = static_cast<size_t>(p.heads) * p.head_stride;
    for (int first = 0; first < splits; first += 32) {
      const int count = min(32, splits - first);
      float2 mine = make_float2(__int_as_float(0xFF800000), 0.0f);
      if (lane < count) mine = __ldcg(ml + static_cast<size_t>(first + lane) * p.heads);
      const float weight = exp2f(mine.x - top);
#pragma unroll 1
      for (int at = 0; at < count; at += 8) {
        float part[8];
#pragma unroll
        for (int s = 0; s < 8; ++s) part[s] = at + s < count ? __ldcg(o + (first + at + s) * stride) : 0.0f;
#pragma unroll
        for (int s = 0; s < 8; ++s) {
          const float w = __shfl_sync(0xFFFFFFFFu, weight, at + s);
          sum += __shfl_sync(0xFFFFFFFFu, mine.y, at + s) * w;
          value += part[s] * w;
        }
      }
    }
    if (element < p.head_dim) {
      p.act_attention[static_cast<size_t>(row) * p.ld_attention + head * p.head_dim + element] =
          __float2bfloat16(value / sum);
    }
  }
}

}  // namespace loopspec::cuda

// Attention of a few queries to many positions, one warp at a time, on matrix instructions straight
// from memory.
//
// Up to 16 queries are the long side of the instruction, positions the short one: S = Q K^T in
// pieces of 8 positions. The fragment of S that a thread holds is, rounded to bf16, the fragment of
// P that P V needs; values are loaded by rows like keys and transposed in registers. A thread needs
// no more than a pointer to each position's key and value, so it makes no difference to any bit
// whether a position lies in a page or in a cell.
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
  uint4 q[kParts][2];     // queries g and g + 8: elements 32 c + 8 t ... + 7
  float o[kParts][4][4];  // [c][r]: columns 32 c + 8 t' + 2 r ...
  float maximum[2], sum[2];

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int c = 0; c < kParts; ++c) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o[c][r][e] = 0.0f;
      }
    }
    maximum[0] = maximum[1] = __int_as_float(0xFF800000);
    sum[0] = sum[1] = 0.0f;
  }

  // Positions base ... base + 31; at[j] is position base + 8 j + g. A query sees positions up to
  // its own (last0 for query g, last1 for g + 8).
  __device__ __forceinline__ void Update(const KeyValue (&at)[4], int base, int last0, int last1,
                                         float scale) {
    const int t = threadIdx.x % 4;
    float s[4][4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint4 k[kParts];
#pragma unroll
      for (int c = 0; c < kParts; ++c) k[c] = LoadCoherent16(at[j].key + c * 32 + t * 8);
#pragma unroll
      for (int c = 0; c < kParts; ++c) Mma32(s[j], q[c][0], q[c][1], k[c]);
    }
    uint4 v[4][kParts];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int c = 0; c < kParts; ++c) v[j][c] = LoadCoherent16(at[j].value + c * 32 + t * 8);
    }
    float top[2] = {maximum[0], maximum[1]};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
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
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[j][e] = exp2f(s[j][e] - top[e / 2]);
        added[e / 2] += s[j][e];
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      added[i] += __shfl_xor_sync(0xFFFFFFFFu, added[i], 1);
      added[i] += __shfl_xor_sync(0xFFFFFFFFu, added[i], 2);
      sum[i] = sum[i] * shrink[i] + added[i];
    }
#pragma unroll
    for (int c = 0; c < kParts; ++c) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o[c][r][e] *= shrink[e / 2];
      }
    }
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const float(&s0)[4] = s[2 * step];
      const float(&s1)[4] = s[2 * step + 1];
      const uint32_t a0 = PackBF16(s0[0], s0[1]), a1 = PackBF16(s0[2], s0[3]);
      const uint32_t a2 = PackBF16(s1[0], s1[1]), a3 = PackBF16(s1[2], s1[3]);
#pragma unroll
      for (int c = 0; c < kParts; ++c) {
        const uint4& v0 = v[2 * step][c];
        const uint4& v1 = v[2 * step + 1][c];
        Mma(o[c][0], a0, a1, a2, a3, Transpose(v0.x), Transpose(v1.x));
        Mma(o[c][1], a0, a1, a2, a3, Transpose(v0.y), Transpose(v1.y));
        Mma(o[c][2], a0, a1, a2, a3, Transpose(v0.z), Transpose(v1.z));
        Mma(o[c][3], a0, a1, a2, a3, Transpose(v0.w), Transpose(v1.w));
      }
    }
  }

  // This thread's 8 contiguous outputs of part c for query g (i = 0) or g + 8 (i = 1): elements 32
  // c + 8 t ...
  __device__ __forceinline__ float Output(int c, int i, int k) const {
    return o[c][k / 2][2 * i + k % 2];
  }
};

// The page of a position holds [plane][kv_head][2][kPageSize][head_stride].
__device__ inline KeyValue InPage(const DecodeParams& p, int page, int plane, int head, int slot) {
  const bf16* at =
      p.page_kv + ((static_cast<size_t>(page) * p.planes + plane) * p.kv_heads + head) *
                      (2 * kPageSize * p.head_stride);
  return {at + slot * p.head_stride, at + (kPageSize + slot) * p.head_stride};
}
// One unit: the rows' query heads that share KV head `head`, over one split. Leaves partial
// results.
template <int kHead>
__device__ __noinline__ void AttendUnit(const AttentionUnit* which, int head, int plane_offset) {
  const BlockContext& context = Context();
  const DecodeParams& p = context.p;
  const AttentionUnit unit = *which;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int group = p.heads / p.kv_heads;
  const int queries = unit.count * group;
  const int plane = unit.plane + plane_offset;
  const int32_t* chain = context.chains + unit.chain;
  const int begin = unit.split * p.split;
  const int end = min(begin + p.split, unit.position + 1);
  const size_t head_at = static_cast<size_t>(plane) * p.kv_heads + head;
  const size_t heads = static_cast<size_t>(p.planes) * p.kv_heads;

  const auto locate = [&](int position) -> KeyValue {
    position = min(position, unit.position);
    if (position < unit.committed) {
      const int page = position - begin < kPageSize ? unit.pages[0] : unit.pages[1];
      const bf16* at = p.page_kv + (page * heads + head_at) * (2 * kPageSize * kHead) +
                       position % kPageSize * kHead;
      return {at, at + kPageSize * kHead};
    }
    const int cell = position == unit.position ? unit.cell : chain[position - unit.committed];
    const bf16* at = p.cell_kv + (cell * heads + head_at) * (2 * kHead);
    return {at, at + kHead};
  };
  // Keys of the first block are loaded at once; everything after them is on its way meanwhile.
  for (int base = begin; base < end; base += kAttentionBlock) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const KeyValue at = locate(base + 8 * j + g);
      if (t * 64 < kHead) {
        Prefetch(at.key + t * 64);
        Prefetch(at.value + t * 64);
      }
    }
  }

  for (int first = 0; first < queries; first += 16) {
    AttentionState<kHead> state;
    state.Clear();
    int slot[2], last[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = first + g + 8 * i;
      QueryRow row{unit.row, unit.partial, unit.position};
      if (unit.count > 1 && query < queries)
        row = context.set.query_rows[unit.first + query / group];
      const int query_head = head * group + query % group;
      const bool there = query < queries;
      slot[i] = there ? (row.partial + unit.split) * p.heads + query_head : -1;
      last[i] = row.position;
      const bf16* source =
          p.q + (static_cast<size_t>(row.row) * p.heads + query_head) * kHead + t * 8;
#pragma unroll
      for (int c = 0; c < kHead / 32; ++c) {
        state.q[c][i] = there ? LoadCoherent16(source + c * 32) : make_uint4(0, 0, 0, 0);
      }
    }
    for (int base = begin; base < end; base += kAttentionBlock) {
      KeyValue at[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) at[j] = locate(base + 8 * j + g);
      state.Update(at, base, last[0], last[1], p.attention_scale);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (slot[i] < 0) continue;
      float* out = p.attention_o + static_cast<size_t>(slot[i]) * kHead + t * 8;
#pragma unroll
      for (int c = 0; c < kHead / 32; ++c) {
        float4* to = reinterpret_cast<float4*>(out + c * 32);
        to[0] = make_float4(state.Output(c, i, 0), state.Output(c, i, 1), state.Output(c, i, 2),
                            state.Output(c, i, 3));
        to[1] = make_float4(state.Output(c, i, 4), state.Output(c, i, 5), state.Output(c, i, 6),
                            state.Output(c, i, 7));
      }
      if (t == 0) p.attention_ml[slot[i]] = make_float2(state.maximum[i], state.sum[i]);
    }
  }
}

// Piece i of attention is head i % kv_heads of unit i / kv_heads; neighbouring pieces go to
// different multiprocessors.
__device__ __forceinline__ int FirstPiece() {
  return static_cast<int>(blockIdx.x + gridDim.x * (threadIdx.x / 32));
}
__device__ __forceinline__ int PieceStride() {
  return static_cast<int>(gridDim.x) * kWarps;
}

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
          reinterpret_cast<const uint32_t*>(context.set.all_units +
                                            piece / context.p.kv_heads)[lane];
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
    const AttentionUnit* unit = n < kCachedUnits ? &context.unit_cache[threadIdx.x / 32][n]
                                                 : context.set.all_units + i / kv_heads;
    switch (context.p.head_stride) {
      case 32:
        AttendUnit<32>(unit, i % kv_heads, plane_offset);
        break;
      case 64:
        AttendUnit<64>(unit, i % kv_heads, plane_offset);
        break;
      case 128:
        AttendUnit<128>(unit, i % kv_heads, plane_offset);
        break;
      default:
        AttendUnit<256>(unit, i % kv_heads, plane_offset);
        break;
    }
  }
}

// Adds up a row's splits in order and rounds to the next matrix's input. A warp takes 32 elements
// of a head.
__device__ __noinline__ inline void MergeOp() {
  const DecodeParams& p = Context().p;
  const RowInfo* infos = Context().set.infos;
  const int rows = Context().set.rows;
  const int lane = threadIdx.x % 32;
  const int parts = (p.head_dim + 31) / 32;
  const int total = rows * p.heads * parts;
  const int stride = static_cast<int>(gridDim.x) * kWarps;
  for (int i = static_cast<int>(blockIdx.x) +
               static_cast<int>(gridDim.x) * static_cast<int>(threadIdx.x / 32);
       i < total; i += stride) {
    const int row = i / (p.heads * parts), head = i / parts % p.heads,
              element = i % parts * 32 + lane;
    const int first = infos[row].partial, splits = infos[row].splits;
    const float2* ml = p.attention_ml + static_cast<size_t>(first) * p.heads + head;
    const float* o =
        p.attention_o + (static_cast<size_t>(first) * p.heads + head) * p.head_stride + element;
    float top = __int_as_float(0xFF800000);
    for (int s = lane; s < splits; s += 32)
      top = fmaxf(top, __ldcg(ml + static_cast<size_t>(s) * p.heads).x);
    for (int mask = 1; mask < 32; mask <<= 1)
      top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, mask));
    float sum = 0.0f, value = 0.0f;
#pragma unroll 8
    for (int s = 0; s < splits; ++s) {
      const float2 part = __ldcg(ml + static_cast<size_t>(s) * p.heads);
      const float weight = exp2f(part.x - top);
      sum += part.y * weight;
      value += __ldcg(o + static_cast<size_t>(s) * p.heads * p.head_stride) * weight;
    }
    if (element < p.head_dim) {
      p.act_attention[static_cast<size_t>(row) * p.ld_attention + head * p.head_dim + element] =
          __float2bfloat16(value / sum);
    }
  }
}

}  // namespace loopspec::cuda

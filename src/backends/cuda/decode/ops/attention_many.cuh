// Pieces of attention with more than kUnitQueries queries, in the kernels without a producer warp:
// keys and values are loaded once, and sixteen queries at a time fill the matrix instruction. A
// query's bits are the same as with eight.
#pragma once

#include "backends/cuda/decode/cta_context.cuh"
#include "backends/cuda/decode/instructions.cuh"
#include "backends/cuda/decode/kernel_params.h"
#include "backends/cuda/decode/ops/attention_math.cuh"
#include "backends/cuda/decode/ops/attention_pieces.cuh"

namespace loopspec::cuda {

// The lane's parts of a query, or zeros.
template <int kHead>
__device__ __forceinline__ void LoadQuery(const LaneQuery& query, uint4 (&parts)[kHead / 32]) {
  const DecodeParams& p = Context().p;
  const bf16* from = p.buffers.q +
                     (static_cast<size_t>(query.row) * p.shapes.heads + query.head) * kHead +
                     threadIdx.x % 4 * 8;
#pragma unroll
  for (int c = 0; c < kHead / 32; ++c) {
    parts[c] = make_uint4(0, 0, 0, 0);
    LoadCoherent16(query.valid, from + c * 32, parts[c]);
  }
}

// Stores the lane's eight elements of part `part` of a query's partial result.
template <int kHead>
__device__ __forceinline__ void StorePart(int slot, int part, int half, const float (&o)[4][4]) {
  if (slot < 0) return;
  float* to = Context().p.buffers.attention_o + static_cast<size_t>(slot) * kHead + part * 32 +
              threadIdx.x % 4 * 8;
  const int e = 2 * half;
  StoreGlobal16(to, make_float4(o[0][e], o[0][e + 1], o[1][e], o[1][e + 1]));
  StoreGlobal16(to + 4, make_float4(o[2][e], o[2][e + 1], o[3][e], o[3][e + 1]));
}

// `at`: with the piece's keys. Once all queries have used them, `then` may load the next piece's.
template <int kHead, typename Keys, typename F>
__device__ __forceinline__ void AttendMany(const AttentionPiece& piece, const Run& run, Keys& at,
                                           F then) {
  constexpr int kGroups = Keys::kGroups, kParts = Keys::kParts, kSplit = Keys::kSplit;
  const DecodeParams& p = Context().p;
  const int queries = piece.count * p.shapes.group;
  uint4 values[kGroups][kParts];
  at.FetchValues(values);
#pragma unroll 1
  for (int first = 0; first < queries; first += 2 * kUnitQueries) {
    const LaneQuery low = QueryOfLane(piece, first),
                    high = QueryOfLane(piece, first + kUnitQueries);
    const int last[2] = {low.last, high.last};
    uint32_t a[kGroups], b[kGroups];  // weights of the lower and of the higher queries
    {
      AttentionState<kHead, 2 * kUnitQueries> state;
      uint4 parts[2][kParts];
      LoadQuery<kHead>(low, parts[0]);
      LoadQuery<kHead>(high, parts[1]);
#pragma unroll
      for (int c = 0; c < kParts; ++c) {
        state.q[c][0] = parts[0][c];
        state.q[c][1] = parts[1][c];
      }
      __syncwarp();
      state.Clear();
      float weights[kGroups][4];
      state.template Weigh<true>(at.keys, piece.begin, last,
                                 piece.begin + kSplit <= piece.committed, p.shapes.attention_scale,
                                 weights);
      StoreWeight(run, low.slot, state.maximum[0], state.sum[0]);
      StoreWeight(run, high.slot, state.maximum[1], state.sum[1]);
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        a[j] = PackBF16(weights[j][0], weights[j][1]);
        b[j] = PackBF16(weights[j][2], weights[j][3]);
      }
    }
    if (first + 2 * kUnitQueries >= queries) then();
#pragma unroll
    for (int c = 0; c < kParts; ++c) {
      float o[4][4] = {};
#pragma unroll
      for (int j = 0; j < kGroups; j += 2) {
        const uint4 v = values[j][c], w = values[j + 1][c];
        Mma(o[0], a[j], b[j], a[j + 1], b[j + 1], Transpose(v.x), Transpose(w.x));
        Mma(o[1], a[j], b[j], a[j + 1], b[j + 1], Transpose(v.y), Transpose(w.y));
        Mma(o[2], a[j], b[j], a[j + 1], b[j + 1], Transpose(v.z), Transpose(w.z));
        Mma(o[3], a[j], b[j], a[j + 1], b[j + 1], Transpose(v.w), Transpose(w.w));
      }
      StorePart<kHead>(low.slot, c, 0, o);
      StorePart<kHead>(high.slot, c, 1, o);
      __syncwarp();
    }
  }
}

}  // namespace loopspec::cuda

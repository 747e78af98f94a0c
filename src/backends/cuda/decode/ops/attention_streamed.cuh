// Pieces of attention whose keys and values the producer warp fetches (stream/producer.cuh): the
// ring's next stage holds the keys, the one after it the values. All their positions are in pages.
// Like the weights they are fetched before the queries exist.
#pragma once

#include "backends/cuda/decode/cta_context.cuh"
#include "backends/cuda/decode/exchange/low_latency.cuh"
#include "backends/cuda/decode/instructions.cuh"
#include "backends/cuda/decode/kernel_params.h"
#include "backends/cuda/decode/ops/attention_math.cuh"
#include "backends/cuda/decode/ops/attention_pieces.cuh"
#include "backends/cuda/decode/stream/weight_ring.cuh"

namespace loopspec::cuda {

// Chooses these pieces, for all phases. By all threads.
template <typename Kind>
__device__ __forceinline__ void ChooseStreamed() {
  static_assert(32 % kWarps == 0 && kPhases * kStreamedPieces * kWarps % 32 == 0 &&
                kPhases * kStreamedPieces * kWarps <= kThreads);
  CtaContext& context = Context();
  const DecodeParams& p = context.p;
  const int warp = static_cast<int>(threadIdx.x) % kWarps;
  const int phase = static_cast<int>(threadIdx.x) / kWarps / kStreamedPieces,
            n = static_cast<int>(threadIdx.x) / kWarps % kStreamedPieces;
  if (phase >= kPhases) return;  // whole warps
  const int piece = static_cast<int>(blockIdx.x + gridDim.x * warp) + n * PieceStride(),
            pieces = context.plan.units[phase] * p.shapes.kv_heads;
  bool streamed = false;
  // With few pieces the warps that have one would delay the producer's copies for the others.
  if (Kind::kProducer && piece < pieces && pieces >= 2 * static_cast<int>(gridDim.x)) {
    const auto* units = At<AttentionUnit>(p.plan, context.plan.unit_at[phase]);
    const AttentionPiece of =
        MakePiece(units[piece / p.shapes.kv_heads], piece % p.shapes.kv_heads);
    streamed = of.begin + p.shapes.split <= of.committed;
    context.streamed_keys[phase][n][warp] = of.page;
  }
  const uint32_t all = __ballot_sync(0xFFFFFFFFu, streamed);
  if (warp == 0)
    context.streamed_warps[phase][n] = all >> (threadIdx.x % 32) & ((1u << kWarps) - 1);
}
// Which of the warp's first pieces are streamed, a bit each.
__device__ __forceinline__ uint32_t StreamedPieces() {
  const CtaContext& context = Context();
  uint32_t pieces = 0;
#pragma unroll
  for (int n = 0; n < kStreamedPieces; ++n)
    pieces |= (context.streamed_warps[context.phase.index][n] >> (threadIdx.x / 32) & 1) << n;
  return pieces;
}

// Loads the keys of the next stage and releases it. Lanes of neighbouring positions would have bank
// conflicts, so those of odd positions load their parts in swapped order and swap them back.
template <int kHead, typename Ring>
__device__ __forceinline__ void TakeKeys(Ring& ring, KeyParts<kHead>& keys) {
  constexpr int kGroups = SplitPositions(kHead) / 8, kParts = kHead / 32;
  const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const bool odd = kParts > 1 && g % 2 != 0;
  const uint32_t stage = ring.WaitStage() + (g * kHead + t * 8) * sizeof(bf16);
  uint32_t last = 0;
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
#pragma unroll
    for (int c = 0; c < kParts; ++c) {
      keys[j][c] = LoadShared16(stage + static_cast<uint32_t>(8 * j * kHead) * sizeof(bf16) +
                                static_cast<uint32_t>(odd ? c ^ 1 : c) * 64);
      last |= keys[j][c].x;
    }
  }
  __syncwarp();
  ring.Refill(last);
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
#pragma unroll
    for (int c = 0; c + 1 < kParts; c += 2) {
      const uint4 a = keys[j][c], b = keys[j][c + 1];
      keys[j][c] = odd ? b : a;
      keys[j][c + 1] = odd ? a : b;
    }
  }
}

// Adds the values of the next stage times their weights. A short loop, not unrolled: code that runs
// once a layer is no longer in the instruction cache, and longer code takes longer to fetch.
template <int kHead, typename Ring, int kGroups>
__device__ __forceinline__ void AddValues(Ring& ring, const uint32_t (&packed)[kGroups],
                                          const PartialResults<kHead>& results) {
  const uint32_t stage =
      ring.WaitStage() + (threadIdx.x % 32 / 4 * kHead + threadIdx.x % 4 * 8) * sizeof(bf16);
  uint32_t last = 0;
#pragma unroll 1
  for (int c = 0; c < kHead / 32; ++c) {
    uint4 part[kGroups];
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      part[j] = LoadShared16(stage + static_cast<uint32_t>(8 * j * kHead + c * 32) * sizeof(bf16));
      last |= part[j].x;
    }
    results.Add(c, part, packed);
  }
  ring.Refill(last);
}

template <int kHead, typename Ring>
__device__ __forceinline__ void AttendStreamed(const AttentionPiece& piece, const Run& run,
                                               Ring& ring) {
  constexpr int kGroups = SplitPositions(kHead) / 8, kParts = kHead / 32;
  const DecodeParams& p = Context().p;
  const LaneQuery query = QueryOfLane(piece, 0);
  const int t = threadIdx.x % 4, last[1] = {query.last};
  uint4 parts[kParts];
  KeyParts<kHead> keys;
  if (run.flags.Has(RunFlag::kReceives)) {
    TakeKeys<kHead>(ring, keys);
    ReceiveParts(query.row * (p.shapes.heads + 2 * p.shapes.kv_heads) + query.head, run.epoch - 1,
                 parts);
  } else {
    const bf16* from = p.buffers.q +
                       (static_cast<size_t>(query.row) * p.shapes.heads + query.head) * kHead +
                       t * 8;
#pragma unroll
    for (int c = 0; c < kParts; ++c) parts[c] = LoadCoherent16(from + c * 32);
    TakeKeys<kHead>(ring, keys);
  }
  __syncwarp();
  AttentionState<kHead, kUnitQueries> state;
#pragma unroll
  for (int c = 0; c < kParts; ++c) {
    state.q[c][0] = query.valid ? parts[c] : make_uint4(0, 0, 0, 0);
    state.q[c][1] = make_uint4(0, 0, 0, 0);
  }
  state.Clear();
  float weights[kGroups][4];
  state.template Weigh<true>(keys, piece.begin, last, true, p.shapes.attention_scale, weights);
  StoreWeight(run, query.slot, state.maximum[0], state.sum[0]);

  uint32_t packed[kGroups];
  PackWeights(weights, packed);
  AddValues<kHead>(ring, packed, PartialResults<kHead>(run, query.slot));
}

}  // namespace loopspec::cuda

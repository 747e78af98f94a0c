// Pieces of attention whose keys and values a copier brings (copier.cuh): the ring's next slot
// holds the keys, the one after it the values. All their positions are in pages. Like the weights
// they are on their way before anything that attention depends on.
#pragma once

#include "backends/cuda/decode/attention.cuh"
#include "backends/cuda/decode/attention_pieces.cuh"
#include "backends/cuda/decode/block_context.cuh"
#include "backends/cuda/decode/device_ops.cuh"
#include "backends/cuda/decode/mail.cuh"
#include "backends/cuda/decode/weight_stream.cuh"
#include "backends/cuda/program/step_types.h"

namespace loopspec::cuda {

// Chooses the pieces, of all sets. By all threads.
template <typename Kind>
__device__ __forceinline__ void ChooseStreamed() {
  static_assert(32 % kWarps == 0 && kSets * kStreamedPieces * kWarps % 32 == 0 &&
                kSets * kStreamedPieces * kWarps <= kThreads);
  BlockContext& context = Context();
  const DecodeParams& p = context.p;
  const int warp = static_cast<int>(threadIdx.x) % kWarps;
  const int set = static_cast<int>(threadIdx.x) / kWarps / kStreamedPieces,
            n = static_cast<int>(threadIdx.x) / kWarps % kStreamedPieces;
  if (set >= kSets) return;  // whole warps
  const int piece = static_cast<int>(blockIdx.x + gridDim.x * warp) + n * PieceStride(),
            pieces = context.plan.units[set] * p.kv_heads;
  bool streamed = false;
  // Where few of the warps have a piece, they would hold up the copies for the others.
  if (Kind::kCopier && piece < pieces && pieces >= 2 * static_cast<int>(gridDim.x)) {
    const auto* units = At<AttentionUnit>(p.plan, context.plan.unit_at[set]);
    const AttentionPiece of = MakePiece(units[piece / p.kv_heads], piece % p.kv_heads);
    streamed = of.begin + p.split <= of.committed;
    context.streamed_keys[set][n][warp] = of.page;
  }
  const uint32_t all = __ballot_sync(0xFFFFFFFFu, streamed);
  if (warp == 0) context.streamed_warps[set][n] = all >> (threadIdx.x % 32) & ((1u << kWarps) - 1);
}
// A bit for each of the warp's first pieces.
__device__ __forceinline__ uint32_t StreamedPieces() {
  const BlockContext& context = Context();
  uint32_t pieces = 0;
#pragma unroll
  for (int n = 0; n < kStreamedPieces; ++n)
    pieces |= (context.streamed_warps[context.set.set][n] >> (threadIdx.x / 32) & 1) << n;
  return pieces;
}

// The keys of the next slot, which is given back. Lanes of neighbouring positions would meet the
// same banks: those of odd ones have their parts in exchanged order on the way.
template <int kHead, typename Ring>
__device__ __forceinline__ void TakeKeys(Ring& ring, KeyParts<kHead>& keys) {
  constexpr int kGroups = SplitPositions(kHead) / 8, kParts = kHead / 32;
  const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const bool odd = kParts > 1 && g % 2 != 0;
  const uint32_t slot = ring.WaitSlot() + (g * kHead + t * 8) * sizeof(bf16);
  uint32_t last = 0;
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
#pragma unroll
    for (int c = 0; c < kParts; ++c) {
      keys[j][c] = LoadShared16(slot + static_cast<uint32_t>(8 * j * kHead) * sizeof(bf16) +
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

// The values of the next slot, times their weights: in a short loop, as instructions that are gone
// through once a layer have to be fetched each time.
template <int kHead, typename Ring, int kGroups>
__device__ __forceinline__ void AddValues(Ring& ring, const uint32_t (&packed)[kGroups],
                                          const PartialResults<kHead>& results) {
  const uint32_t slot =
      ring.WaitSlot() + (threadIdx.x % 32 / 4 * kHead + threadIdx.x % 4 * 8) * sizeof(bf16);
  uint32_t last = 0;
#pragma unroll 1
  for (int c = 0; c < kHead / 32; ++c) {
    uint4 part[kGroups];
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      part[j] = LoadShared16(slot + static_cast<uint32_t>(8 * j * kHead + c * 32) * sizeof(bf16));
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
  if ((run.flags & kRunMailIn) != 0) {
    TakeKeys<kHead>(ring, keys);
    ReceiveParts(query.row * (p.heads + 2 * p.kv_heads) + query.head, run.stamp - 1, parts);
  } else {
    const bf16* from =
        p.q + (static_cast<size_t>(query.row) * p.heads + query.head) * kHead + t * 8;
#pragma unroll
    for (int c = 0; c < kParts; ++c) parts[c] = LoadCoherent16(from + c * 32);
    TakeKeys<kHead>(ring, keys);
  }
  __syncwarp();
  AttentionState<kHead, kUnitQueries> state;
#pragma unroll
  for (int c = 0; c < kParts; ++c) {
    state.q[c][0] = query.asks ? parts[c] : make_uint4(0, 0, 0, 0);
    state.q[c][1] = make_uint4(0, 0, 0, 0);
  }
  state.Clear();
  float weights[kGroups][4];
  state.template Weigh<true>(keys, piece.begin, last, true, p.attention_scale, weights);
  StoreWeight(run, query.slot, state.maximum[0], state.sum[0]);

  uint32_t packed[kGroups];
  PackWeights(weights, packed);
  AddValues<kHead>(ring, packed, PartialResults<kHead>(run, query.slot));
}

}  // namespace loopspec::cuda

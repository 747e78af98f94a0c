// Pieces of attention whose keys and values the producer warp fetches (decode/producer.cuh): of
// each split, the ring's next stage holds the keys, the one after it the values. All their
// positions are in pages. Like the weights they are fetched before the queries exist.
#pragma once

#include "backends/cuda/attention/attention_pieces.cuh"
#include "backends/cuda/device/attention_math.cuh"
#include "backends/cuda/device/cta_context.cuh"
#include "backends/cuda/device/exchange/low_latency.cuh"
#include "backends/cuda/device/instructions.cuh"
#include "backends/cuda/device/kernel_params.h"
#include "backends/cuda/device/weight_ring.cuh"

namespace loopspec::cuda {

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

// Waits for the next stage, which holds values; returns where this lane's begin.
template <int kHead, typename Ring>
__device__ __forceinline__ uint32_t WaitValues(Ring& ring) {
  return ring.WaitStage() + (threadIdx.x % 32 / 4 * kHead + threadIdx.x % 4 * 8) * sizeof(bf16);
}
// Loads part c of the values there; `last` comes to depend on them.
template <int kHead, int kGroups>
__device__ __forceinline__ void LoadValues(uint32_t stage, int c, uint4 (&part)[kGroups],
                                           uint32_t& last) {
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    part[j] = LoadShared16(stage + static_cast<uint32_t>(8 * j * kHead + c * 32) * sizeof(bf16));
    last |= part[j].x;
  }
}

// Adds the values of the next stage times their weights. A short loop, not unrolled: code that runs
// once a layer is no longer in the instruction cache, and longer code takes longer to fetch.
template <int kHead, typename Ring, int kGroups>
__device__ __forceinline__ void AddValues(Ring& ring, const uint32_t (&packed)[kGroups],
                                          const PartialResults<kHead>& results) {
  const uint32_t stage = WaitValues<kHead>(ring);
  uint32_t last = 0;
#pragma unroll 1
  for (int c = 0; c < kHead / 32; ++c) {
    uint4 part[kGroups];
    LoadValues<kHead>(stage, c, part, last);
    results.Add(c, part, packed);
  }
  ring.Refill(last);
}

// Adds the values of the next stage times their weights to the state, whose parts must be known to
// the compiler: the loop is unrolled.
template <int kHead, typename Ring, int kGroups>
__device__ __forceinline__ void AccumulateValues(Ring& ring, const uint32_t (&packed)[kGroups],
                                                 AttentionState<kHead, kUnitQueries>& state) {
  const uint32_t stage = WaitValues<kHead>(ring);
  uint32_t last = 0;
#pragma unroll
  for (int c = 0; c < kHead / 32; ++c) {
    uint4 part[kGroups];
    LoadValues<kHead>(stage, c, part, last);
    state.Add(c, part, packed);
  }
  ring.Refill(last);
}

// The splits of a span, the keys of the first of which have been loaded. Each is a partial.
template <int kHead, bool kSingle, typename Ring>
__device__ __forceinline__ void AttendSplits(const AttentionPiece& piece, const Run& run,
                                             const LaneQuery& query,
                                             AttentionState<kHead, kUnitQueries>& state,
                                             KeyParts<kHead>& keys, Ring& ring) {
  constexpr int kGroups = SplitPositions(kHead) / 8;
  const DecodeParams& p = Context().p;
  const int last[1] = {query.last};
  int slot = query.slot;
#pragma unroll 1
  for (int split = 0;;) {
    state.Clear();
    float weights[kGroups][4];
    state.template Weigh<true>(keys, 0, last, true, p.shapes.attention_scale, weights);
    StoreWeight(run, slot, state.maximum[0], state.sum[0]);
    uint32_t packed[kGroups];
    PackWeights(weights, packed);
    AddValues<kHead>(ring, packed, PartialResults<kHead>(run, slot));
    if (kSingle || ++split == piece.splits) return;
    if (slot >= 0) slot += p.shapes.heads;
    TakeKeys<kHead>(ring, keys);
  }
}

// Attends to a span of splits of which several are a partial.
template <int kHead, typename Ring>
__device__ __forceinline__ void AttendMerged(const AttentionPiece& piece, const Run& run,
                                             const LaneQuery& query,
                                             AttentionState<kHead, kUnitQueries>& state,
                                             KeyParts<kHead>& keys, Ring& ring) {
  constexpr int kGroups = SplitPositions(kHead) / 8;
  const DecodeParams& p = Context().p;
  const int last[1] = {query.last};
  int slot = query.slot, left = piece.merged;
  state.Clear();
#pragma unroll 1
  for (int split = 0;;) {
    float weights[kGroups][4];
    state.template Weigh<false>(keys, 0, last, true, p.shapes.attention_scale, weights);
    uint32_t packed[kGroups];
    PackWeights(weights, packed);
    AccumulateValues<kHead>(ring, packed, state);
    if (--left == 0) {
      StorePartial<kHead>(run, slot, state);
      state.Clear();
      left = piece.merged;
      if (slot >= 0) slot += p.shapes.heads;
    }
    if (++split == piece.splits) return;
    TakeKeys<kHead>(ring, keys);
  }
}

template <int kHead, PieceKind kPieces, typename Ring>
__device__ __forceinline__ void AttendStreamed(const AttentionPiece& piece, const Run& run,
                                               Ring& ring) {
  constexpr int kParts = kHead / 32;
  const DecodeParams& p = Context().p;
  const LaneQuery query = QueryOfLane(piece, 0);
  uint4 parts[kParts];
  KeyParts<kHead> keys;
  if (run.flags.Has(RunFlag::kReceives)) {
    TakeKeys<kHead>(ring, keys);
    ReceiveParts(query.row * (p.shapes.heads + 2 * p.shapes.kv_heads) + query.head, run.epoch - 1,
                 parts);
  } else {
    const bf16* from = p.buffers.q +
                       (static_cast<size_t>(query.row) * p.shapes.heads + query.head) * kHead +
                       threadIdx.x % 4 * 8;
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
  if constexpr (kPieces == PieceKind::kMergedSpans) {
    AttendMerged<kHead>(piece, run, query, state, keys, ring);
  } else {
    AttendSplits<kHead, kPieces == PieceKind::kSplits>(piece, run, query, state, keys, ring);
  }
}

}  // namespace loopspec::cuda

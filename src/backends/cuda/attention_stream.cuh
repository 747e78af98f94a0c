// Pieces of attention whose keys and values a copier brings (copier.cuh): the ring's next slot
// holds the keys, the one after it the values. All their positions are in pages. Like the weights
// they are on their way before anything that attention depends on.
//
// A slot is, for each 64 elements, the split's positions of 128 bytes; the 16-byte parts of
// position i are exchanged by i % 8, as the copy engine leaves them.
#pragma once

#include "backends/cuda/attention.cuh"
#include "backends/cuda/attention_pieces.cuh"
#include "backends/cuda/block_context.cuh"
#include "backends/cuda/device_ops.cuh"
#include "backends/cuda/mail.cuh"
#include "backends/cuda/step_types.h"
#include "backends/cuda/weight_stream.cuh"
#include "kv/ledger.h"

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
  if (Kind::kCopier && p.page_map != nullptr && piece < pieces &&
      pieces >= 2 * static_cast<int>(gridDim.x)) {
    const AttentionUnit& unit = reinterpret_cast<const AttentionUnit*>(
        reinterpret_cast<const char*>(p.plan) + context.plan.unit_at[set])[piece / p.kv_heads];
    const int begin = unit.split * p.split;
    streamed = begin + p.split <= unit.committed;
    context.streamed[set][n][warp] =
        ((unit.page * p.planes + unit.plane) * p.kv_heads + piece % p.kv_heads) * (2 * kPageSize) +
        begin % kPageSize;
  }
  const uint32_t all = __ballot_sync(0xFFFFFFFFu, streamed);
  if (warp == 0) context.streams[set][n] = all >> (threadIdx.x % 32) & ((1u << kWarps) - 1);
}
// A bit for each of the warp's first pieces.
__device__ __forceinline__ uint32_t StreamedPieces() {
  const BlockContext& context = Context();
  uint32_t pieces = 0;
#pragma unroll
  for (int n = 0; n < kStreamedPieces; ++n)
    pieces |= (context.streams[context.set.set][n] >> (threadIdx.x / 32) & 1) << n;
  return pieces;
}

// The keys of the next slot, which is given back. Lanes of neighbouring positions would meet the
// same banks: those of odd ones have their parts in exchanged order on the way.
template <int kHead, typename Ring>
__device__ __forceinline__ void TakeKeys(Ring& ring, KeyParts<kHead>& keys) {
  constexpr int kSplit = SplitPositions(kHead), kGroups = kSplit / 8, kParts = kHead / 32;
  const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const bool odd = g % 2 != 0;
  const uint32_t slot = ring.WaitSlot() + g * 128, part = (t ^ g ^ (odd ? 4 : 0)) * 16;
  uint32_t last = 0;
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
#pragma unroll
    for (int c = 0; c < kParts; ++c) {
      keys[j][c] = LoadShared16(slot + static_cast<uint32_t>(c / 2 * kSplit + 8 * j) * 128 +
                                (part ^ static_cast<uint32_t>(c % 2 * 64)));
      last |= keys[j][c].x;
    }
  }
  __syncwarp();
  ring.Refill(last);
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
#pragma unroll
    for (int c = 0; c < kParts; c += 2) {
      const uint4 a = keys[j][c], b = keys[j][c + 1];
      keys[j][c] = odd ? b : a;
      keys[j][c + 1] = odd ? a : b;
    }
  }
}

// The values of the next slot, transposed: [pair of groups of eight positions][pair of groups of
// eight elements][element group * 2 + position group]. The slot is given back.
template <int kHead>
using ValueParts = uint32_t[SplitPositions(kHead) / 16][kHead / 16][4];
template <int kHead, typename Ring>
__device__ __forceinline__ void TakeValues(Ring& ring, ValueParts<kHead>& values) {
  constexpr int kSplit = SplitPositions(kHead);
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t slot = ring.WaitSlot() + lane % 16 * 128, part = (lane / 16 ^ lane % 8) * 16;
  uint32_t last = 0;
#pragma unroll
  for (int j = 0; j < kSplit / 16; ++j) {
#pragma unroll
    for (int e = 0; e < kHead / 16; ++e) {
      LoadTransposed(slot + static_cast<uint32_t>(e / 4 * kSplit + 16 * j) * 128 +
                         (part ^ static_cast<uint32_t>(e % 4 * 32)),
                     values[j][e]);
      last |= values[j][e][0];
    }
  }
  __syncwarp();
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

  ValueParts<kHead> values;
  TakeValues<kHead>(ring, values);
  uint32_t a[kGroups];
#pragma unroll
  for (int j = 0; j < kGroups; ++j) a[j] = PackBF16(weights[j][0], weights[j][1]);
  const size_t at = static_cast<size_t>(max(query.slot, 0)) * kHead + 2 * t;
#pragma unroll
  for (int e = 0; e < kHead / 8; ++e) {  // eight elements, of which the lane has two
    float o[4] = {};
#pragma unroll
    for (int j = 0; j < kGroups / 2; ++j) {
      const uint32_t* b = values[j][e / 2] + e % 2 * 2;
      Mma(o, a[2 * j], 0, a[2 * j + 1], 0, b[0], b[1]);
    }
    if (query.slot < 0) continue;
    if ((run.flags & kRunMailOut) != 0) {
      PostTwo(p.mail_o + at + e * 8, o[0], o[1], run.stamp);
    } else {
      *reinterpret_cast<float2*>(p.attention_o + at + e * 8) = make_float2(o[0], o[1]);
    }
  }
  __syncwarp();
}

}  // namespace loopspec::cuda

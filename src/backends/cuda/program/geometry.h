// Sizes that the program, the plan and the decode kernel agree on.
#pragma once

#include "backends/cuda/host/device_model.h"

namespace loopspec::cuda {

inline constexpr int kThreads =
    256;  // that compute, of a CTA: eight warps share the k of a product
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kProducerThreads = 32;  // beside them, in kernels with a producer warp
inline constexpr int kPassRows = 32;         // batch rows that one pass over the weights serves
inline constexpr int kSmallBatchRows = 8;    // rows up to which results may go through
                                             // device/exchange/low_latency.cuh
inline constexpr int kChunkK = kWarps * kBlockK;  // a chunk of k: one block of k for each warp
inline constexpr int kMaxMatrices = 384;          // of one model
inline constexpr int kMaxHidden = 8192;           // a CTA holds a row of the stream in registers
inline constexpr int kLocalHidden = 2048;         // widest row of which every CTA may hold a copy
inline constexpr int kProducerHidden = 6144;      // and of kernels with a producer warp, whose
                                                  // threads have fewer registers, and of those of
                                                  // single operations

// Positions of a split of attention: as many as a warp can have in flight at once.
inline constexpr int SplitPositions(int head_stride) {
  return head_stride <= 64 ? 64 : 4096 / head_stride;
}

// 16-bit words that a position's key (or value) of one head takes in a page: bf16 elements, or int8
// codes and their scale (device/kv_int8.cuh).
inline constexpr int KeyWords(int head_stride, bool int8_keys) {
  return int8_keys ? head_stride / 2 + 2 : head_stride;
}

// Splits of an attention partial of a row at `position`: one, or more where the partials that are
// left still occupy the warps of a large chip. It decides on the order of sums, so it may
// depend on nothing but the row and the model.
inline constexpr int kPartialPieces = 1024;
inline constexpr int PartialSplits(int position, int split, int kv_heads, int most) {
  const int64_t pieces = static_cast<int64_t>(position) * kv_heads / (split * most);
  return pieces >= kPartialPieces ? most : 1;
}

// Query heads that a warp takes at once: an attention unit has as many rows as give that many query
// heads of one KV head, and at least one.
inline constexpr int kUnitQueries = 8;
// Query heads of a unit in phases that have a kernel for each operation: keys and values are read
// once for all of them.
inline constexpr int kLargeUnitQueries = 32;
// Rows of a phase from which on every operation has a kernel of its own (decode/wide). Where rows
// of the stream are wider than kLocalHidden, layers are so large that launches weigh less than grid
// barriers: with wgmma at any number of rows, without it from about half a pass on (H200).
inline constexpr int kWideFrom = kPassRows + 1;
inline constexpr int WideFrom(int hidden, bool hopper, bool packed = false) {
  // There is no kernel for 25 to 32 rows of weights of few bits with a producer warp.
  if (hidden <= kLocalHidden) return packed ? kPassRows - 7 : kWideFrom;
  return hopper ? 1 : kPassRows / 2 + 1;
}

// Pages of a span of splits at most. A warp attends to a span with its queries in registers.
inline constexpr int kSpanPages = 4;

// With at most this many pieces for each warp, single splits are faster than spans.
inline constexpr int kFewRounds = 4;

// How long the slowest of the grid's warps takes for `pieces` whole spans of `splits` splits each
// and `tail` pieces with tails, in splits. A piece by itself costs about as much as a split: its
// queries have to be fetched.
inline constexpr int SpansTime(int pieces, int splits, int tail, int warps) {
  const int rounds = (pieces + warps - 1) / warps, free = rounds * warps - pieces;
  return rounds * (splits + 1) + (tail > free ? 2 * ((tail - free + warps - 1) / warps) : 0);
}

// Lanes, of four elements each, that a piece of the combine operation has
// (attention/combine_op.cuh): as few as give each of the grid's `warps` at most one piece of the
// `elements` in all rows. More than eight leave no registers for the exchange, and are more than a
// head has where head_stride is 32.
inline constexpr int CombineLanes(int elements, int warps, int head_stride, bool small_batch) {
  const int most = small_batch || head_stride < 64 ? 8 : 16;
  int lanes = 1;
  while (lanes < most && elements > 4 * lanes * warps) lanes *= 2;
  return lanes;
}

// Where the tail units (those with uncommitted positions) are put among the `others` of the plan,
// if those are single splits. Tail units take longest then, because they look up cells. Pieces go
// to the grid's `warps` round robin; at the end of the last full round the tail units fall to warps
// that get no piece of the last, incomplete round, as far as there are such warps.
inline constexpr size_t TailUnitsIndex(size_t others, size_t tail, int kv_heads, int warps) {
  const auto heads = static_cast<size_t>(kv_heads), each = static_cast<size_t>(warps);
  const size_t full = (others + tail) * heads / each * each / heads;
  return full < tail ? 0 : full - tail < others ? full - tail : others;
}

}  // namespace loopspec::cuda

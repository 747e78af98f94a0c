// Attention of a phase's rows: every warp computes its pieces and stores partial results, which
// combine_op.cuh adds up. Here the pieces whose keys and values the warp loads itself.
#pragma once

#include "backends/cuda/attention/attention_int8.cuh"
#include "backends/cuda/attention/attention_pieces.cuh"
#include "backends/cuda/attention/attention_streamed.cuh"
#include "backends/cuda/device/attention_math.cuh"
#include "backends/cuda/device/cta_context.cuh"
#include "backends/cuda/device/exchange/low_latency.cuh"
#include "backends/cuda/device/instructions.cuh"
#include "backends/cuda/device/kernel_params.h"
#include "backends/cuda/device/weight_ring.cuh"
#include "kv/ledger.h"

namespace loopspec::cuda {

// Prefetches the committed keys and values of the warp's first pieces for the next layer into the
// L2 cache, unless the producer warp fetches them; of int8 ones the scales in any case. One lane
// for each piece.
template <bool kInt8Keys>
__device__ __forceinline__ void PrefetchKeys(int plane_offset) {
  const CtaContext& context = Context();
  const DecodeParams& p = context.p;
  const int n = threadIdx.x % 32;
  if (n >= kCachedPieces ||
      FirstPiece() + n * PieceStride() >= context.phase.units * p.shapes.kv_heads)
    return;
  const AttentionPiece& piece = context.piece_cache[threadIdx.x / 32][n];
  const bool streamed = piece.whole != 0 && StreamsKeys(context.phase.units);
  if (!kInt8Keys && streamed) return;
  const int count = min(p.shapes.split, piece.committed - piece.begin);
  if (count <= 0 || piece.plane + plane_offset >= p.shapes.planes) return;
  const bf16* keys = piece.page + static_cast<size_t>(plane_offset) * p.shapes.kv_heads *
                                      (2 * kPageSize * p.shapes.key_words);
  if constexpr (kInt8Keys) {
    const int split = Quotient(piece.begin % kPageSize, p.shapes.split);
    Prefetch(keys + (kPageSize - split * p.shapes.split) * p.shapes.head_stride +
                 split * p.shapes.split * 4,
             p.shapes.split * 8);
    if (!streamed)
      Prefetch(keys, p.shapes.split * p.shapes.head_stride * static_cast<int>(sizeof(bf16)));
    return;
  }
  const int bytes = count * p.shapes.head_stride * static_cast<int>(sizeof(bf16));
  Prefetch(keys, bytes);
  Prefetch(keys + kPageSize * p.shapes.head_stride, bytes);
}

// Puts the parts at position `own` of the split and at all after it. The latter have weight zero,
// but must not keep what the cell had before: zero times infinity is not zero.
template <int kGroups, int kParts>
__device__ __forceinline__ void Put(const uint4 (&parts)[kParts], int own,
                                    uint4 (&to)[kGroups][kParts]) {
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    const bool here = 8 * j + static_cast<int>(threadIdx.x % 32 / 4) >= own;
#pragma unroll
    for (int c = 0; c < kParts; ++c) to[j][c] = here ? parts[c] : to[j][c];
  }
}

// Where the keys and values of a piece are, for position 8 j + g of the split, and the keys.
template <int kHead>
struct PieceKeys {
  static constexpr int kSplit = SplitPositions(kHead), kGroups = kSplit / 8, kParts = kHead / 32;
  const bf16* at[kGroups];
  uint32_t in_cell;  // bit j: the position is in a cell, where the value follows the key
  KeyParts<kHead> keys;

  __device__ __forceinline__ void Fetch(const AttentionPiece& piece, const Run& run) {
    Fetch(piece, run, piece.page, piece.begin);
  }
  // The split that begins at `begin`, whose first key is at `first`.
  __device__ __forceinline__ void Fetch(const AttentionPiece& piece, const Run& run,
                                        const bf16* first, int begin) {
    const CtaContext& context = Context();
    const DecodeParams& p = context.p;
    const int g = threadIdx.x % 32 / 4;
    const size_t plane_heads = static_cast<size_t>(PlaneOffset(run)) * p.shapes.kv_heads;
    const bf16* page = first + plane_heads * (2 * kPageSize * kHead);
    in_cell = 0;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) at[j] = page + (8 * j + g) * kHead;
    if (begin + kSplit > piece.committed) {
      const bf16* cell = piece.cell + plane_heads * (2 * kHead);
      const bf16* cells =
          p.buffers.cell_kv +
          (static_cast<size_t>(piece.plane) * p.shapes.kv_heads + piece.head + plane_heads) *
              (2 * kHead);
      const size_t stride = static_cast<size_t>(p.shapes.planes) * p.shapes.kv_heads * (2 * kHead);
      const int32_t* chain = context.chains + piece.chain;
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        const int position = min(begin + 8 * j + g, piece.position);
        at[j] = page + (position - begin) * kHead;
        if (position < piece.committed) continue;
        at[j] =
            position == piece.position ? cell : cells + chain[position - piece.committed] * stride;
        in_cell |= 1u << j;
      }
    }
    LoadGroups(keys, [&](int j) { return at[j]; });
  }
  __device__ __forceinline__ void FetchValues(KeyParts<kHead>& values) const {
    LoadGroups(values, [&](int j) {
      return at[j] + ((in_cell >> j & 1) != 0 ? kHead : kPageSize * kHead);
    });
  }
};

// kEarlyValues: keys and values of the piece are loaded together, and once the keys have been used,
// `then` may load the next piece's keys into their registers. Otherwise the values go into the
// keys' registers, which needs fewer of them.
template <int kHead, bool kEarlyValues, typename F>
__device__ __forceinline__ void Attend(const AttentionPiece& piece, const Run& run,
                                       PieceKeys<kHead>& at, F then) {
  constexpr int kGroups = PieceKeys<kHead>::kGroups, kParts = PieceKeys<kHead>::kParts,
                kSplit = PieceKeys<kHead>::kSplit;
  const CtaContext& context = Context();
  const DecodeParams& p = context.p;
  const int t = threadIdx.x % 4;
  const int group = p.shapes.group, queries = piece.count * group;
  const int begin = piece.begin, own = piece.position - begin;
  // The key and value of the row's own position come from the same operation as its query.
  const bool own_by_exchange = own < kSplit && run.flags.Has(RunFlag::kReceives);
  const int vectors = p.shapes.heads + 2 * p.shapes.kv_heads;  // of a row in exchange.qkv
  const int own_key = piece.row * vectors + p.shapes.heads + piece.head * 2;
  // With a producer warp there are at most kUnitQueries queries (LaunchDecode).
#pragma unroll 1
  for (int first = 0; first < (kEarlyValues ? queries : 1); first += kUnitQueries) {
    uint4 values[kGroups][kParts];
    if constexpr (kEarlyValues) at.FetchValues(values);
    AttentionState<kHead, kUnitQueries> state;
    const LaneQuery query = QueryOfLane(piece, first);
    const int last[1] = {query.last};
    uint4 parts[kParts];
    if (run.flags.Has(RunFlag::kReceives)) {
      // Lanes without a query receive the key of the row's own position meanwhile.
      ReceiveParts(own_by_exchange && !query.valid ? own_key : query.row * vectors + query.head,
                   run.epoch - 1, parts);
    } else {
      const bf16* source = p.buffers.q +
                           (static_cast<size_t>(query.row) * p.shapes.heads + query.head) * kHead +
                           t * 8;
#pragma unroll
      for (int c = 0; c < kParts; ++c) parts[c] = LoadCoherent16(source + c * 32);
      __syncwarp();
    }
#pragma unroll
    for (int c = 0; c < kParts; ++c) {
      state.q[c][0] = query.valid ? parts[c] : make_uint4(0, 0, 0, 0);
      state.q[c][1] = make_uint4(0, 0, 0, 0);
    }
    if (own_by_exchange) {
      if (first + kUnitQueries <= queries) {  // all lanes had a query
        ReceiveParts(own_key, run.epoch - 1, parts);
      }
#pragma unroll
      for (int c = 0; c < kParts; ++c) parts[c] = OfLane(parts[c], 28 + t);
      Put(parts, own, at.keys);
      if constexpr (kEarlyValues) {
        ReceiveParts(own_key + 1, run.epoch - 1, parts);
        Put(parts, own, values);
      }
    }
    state.Clear();
    float weights[kGroups][4];
    state.template Weigh<true>(at.keys, begin, last, begin + kSplit <= piece.committed,
                               p.shapes.attention_scale, weights);
    if constexpr (!kEarlyValues) {
      at.FetchValues(values);
      if (own_by_exchange) {
        ReceiveParts(own_key + 1, run.epoch - 1, parts);
        Put(parts, own, values);
      }
    }
    StoreWeight(run, query.slot, state.maximum[0], state.sum[0]);
    if constexpr (kEarlyValues) {
      if (first + kUnitQueries >= queries) then();
    }
    uint32_t packed[kGroups];
    PackWeights(weights, packed);
    const PartialResults<kHead> results(run, query.slot);
#pragma unroll
    for (int c = 0; c < kParts; ++c) {
      uint4 part[kGroups];
#pragma unroll
      for (int j = 0; j < kGroups; ++j) part[j] = values[j][c];
      results.Add(c, part, packed);
    }
    __syncwarp();
  }
}

// A piece whose partials are several splits each.
template <int kHead>
__device__ __forceinline__ void AttendMergedPiece(const AttentionPiece& piece, const KeySpan& keys,
                                                  const Run& run) {
  constexpr int kGroups = PieceKeys<kHead>::kGroups, kParts = PieceKeys<kHead>::kParts,
                kSplit = PieceKeys<kHead>::kSplit;
  const DecodeParams& p = Context().p;
  const int own_key = piece.row * (p.shapes.heads + 2 * p.shapes.kv_heads) + p.shapes.heads +
                      piece.head * 2;  // in exchange.qkv
#pragma unroll 1
  for (int first = 0; first < piece.count * p.shapes.group; first += kUnitQueries) {
    const LaneQuery query = QueryOfLane(piece, first);
    const int last[1] = {query.last};
    AttentionState<kHead, kUnitQueries> state;
    uint4 parts[kParts];
    LoadQueryParts<kHead>(query, run, parts);
#pragma unroll
    for (int c = 0; c < kParts; ++c) {
      state.q[c][0] = query.valid ? parts[c] : make_uint4(0, 0, 0, 0);
      state.q[c][1] = make_uint4(0, 0, 0, 0);
    }
    state.Clear();
    int slot = query.slot, left = piece.merged;
#pragma unroll 1
    for (int split = 0; split < piece.splits; ++split) {
      const int begin = piece.begin + split * kSplit, own = piece.position - begin;
      const bool own_by_exchange = own < kSplit && run.flags.Has(RunFlag::kReceives);
      PieceKeys<kHead> at;
      at.Fetch(piece, run, KeysOf(keys, split, piece.head), begin);
      if (own_by_exchange) {
        ReceiveParts(own_key, run.epoch - 1, parts);
        Put(parts, own, at.keys);
      }
      float weights[kGroups][4];
      state.template Weigh<false>(at.keys, begin, last, begin + kSplit <= piece.committed,
                                  p.shapes.attention_scale, weights);
      at.FetchValues(at.keys);
      if (own_by_exchange) {
        ReceiveParts(own_key + 1, run.epoch - 1, parts);
        Put(parts, own, at.keys);
      }
      uint32_t packed[kGroups];
      PackWeights(weights, packed);
#pragma unroll
      for (int c = 0; c < kParts; ++c) {
        uint4 part[kGroups];
#pragma unroll
        for (int j = 0; j < kGroups; ++j) part[j] = at.keys[j][c];
        state.Add(c, part, packed);
      }
      __syncwarp();
      if (--left > 0 && split + 1 < piece.splits) continue;
      StorePartial<kHead>(run, slot, state);
      state.Clear();
      left = piece.merged;
      if (slot >= 0) slot += p.shapes.heads;
    }
  }
}

// The warp's pieces, where all are single splits.
template <int kHead, typename Kind>
__device__ __noinline__ void AttendPieces() {
  const Run run = CurrentRun();
  const CtaContext& context = Context();
  const int total = context.phase.units * context.p.shapes.kv_heads;
  int i = FirstPiece();
  if (i >= total) return;
  if constexpr (Kind::kProducer) {
    Ring<Kind> ring;
    const bool streams = StreamsKeys(context.phase.units);
#pragma unroll 1
    for (int n = 0; i < total; i += PieceStride(), ++n) {
      const AttentionPiece piece = PieceAt(i, n);
      if (streams && piece.whole != 0) {
        AttendStreamed<kHead, PieceKind::kSplits>(piece, run, ring);
      } else {
        PieceKeys<kHead> at;
        at.Fetch(piece, run);
        Attend<kHead, false>(piece, run, at, [] {});
      }
    }
    ring.Save();
  } else {
    AttentionPiece piece = PieceAt(i, 0);
    PieceKeys<kHead> at;
    at.Fetch(piece, run);
#pragma unroll 1
    for (int n = 1;; ++n) {
      i += PieceStride();
      const auto next = [&] {
        if (i < total) at.Fetch(PieceAt(i, n), run);
      };
      Attend<kHead, true>(piece, run, at, next);
      if (i >= total) return;
      piece = PieceAt(i, n);  // again: keeping it would take registers
    }
  }
}

// The warp's spans of splits. Its tails follow in a function of their own, which leaves more
// registers to both.
template <int kHead, typename Kind, PieceKind kPieces>
__device__ __noinline__ void AttendSpans() {
  const Run run = CurrentRun();
  const CtaContext& context = Context();
  const int total = context.phase.spans * context.p.shapes.kv_heads;
  Ring<Kind> ring;
#pragma unroll 1
  for (int i = FirstPiece(), n = 0; i < total; i += PieceStride(), ++n)
    AttendStreamed<kHead, kPieces>(PieceAt(i, n), run, ring);
  ring.Save();
}
// kProducer: spans have been done.
template <int kHead, bool kProducer, bool kMerged>
__device__ __noinline__ void AttendTails() {
  const Run run = CurrentRun();
  const CtaContext& context = Context();
  const int kv_heads = context.p.shapes.kv_heads, total = context.phase.units * kv_heads;
#pragma unroll 1
  for (int i = FirstPiece(), n = 0; i < total; i += PieceStride(), ++n) {
    if (kProducer && i < context.phase.spans * kv_heads) continue;
    const AttentionPiece piece = PieceAt(i, n);
    if constexpr (kMerged) {
      AttendMergedPiece<kHead>(piece, context.phase.all_units[i / kv_heads].keys, run);
    } else {
      PieceKeys<kHead> at;
      at.Fetch(piece, run);
      Attend<kHead, false>(piece, run, at, [] {});
    }
  }
}

template <int kHead, typename Kind>
__device__ __forceinline__ void AttendHeads() {
  const PieceKind pieces = Context().phase.pieces;
  if (pieces == PieceKind::kSplits) {
    AttendPieces<kHead, Kind>();
    return;
  }
  // Only what the producer warp fetches comes in spans, unless several splits are a partial.
  if constexpr (Kind::kProducer) {
    if (pieces == PieceKind::kSpans) {
      AttendSpans<kHead, Kind, PieceKind::kSpans>();
      AttendTails<kHead, true, false>();
      return;
    }
    AttendSpans<kHead, Kind, PieceKind::kMergedSpans>();
  }
  AttendTails<kHead, Kind::kProducer, true>();
}

template <int kHead, typename Kind>
__device__ __forceinline__ void AttendKeys() {
  if constexpr (Kind::kInt8Keys) {
    AttendInt8<kHead, Kind>();
  } else {
    AttendHeads<kHead, Kind>();
  }
}

template <typename Kind>
__device__ __forceinline__ void AttentionOp() {
  switch (Context().p.shapes.head_stride) {
    case 32:
      AttendKeys<32, Kind>();
      break;
    case 64:
      AttendKeys<64, Kind>();
      break;
    case 128:
      AttendKeys<128, Kind>();
      break;
    default:
      // The exchange does not support such heads.
      if constexpr (!Kind::kProducer) AttendKeys<256, Kind>();
      break;
  }
}

}  // namespace loopspec::cuda

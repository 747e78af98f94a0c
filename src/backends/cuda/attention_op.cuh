// Attention of a set's rows: every warp takes pieces, the queries of a few rows that share one KV
// head over the positions of one split, and leaves partial results for merge_op.cuh to add up.
#pragma once

#include "backends/cuda/attention.cuh"
#include "backends/cuda/block_context.cuh"
#include "backends/cuda/device_ops.cuh"
#include "backends/cuda/mail.cuh"
#include "backends/cuda/step_types.h"
#include "backends/cuda/weight_stream.cuh"
#include "kv/ledger.h"

namespace loopspec::cuda {

// Piece i of attention is head i % kv_heads of unit i / kv_heads; neighbouring pieces go to
// different multiprocessors.
__device__ __forceinline__ int FirstPiece() {
  return static_cast<int>(blockIdx.x + gridDim.x * (threadIdx.x / 32));
}
__device__ __forceinline__ int PieceStride() {
  return static_cast<int>(gridDim.x) * kWarps;
}

// A piece of the set's attention, in the plane of its stack's first layer.
__device__ __forceinline__ AttentionPiece MakePiece(const AttentionUnit& unit, int head) {
  const DecodeParams& p = Context().p;
  const size_t heads = static_cast<size_t>(p.planes) * p.kv_heads;
  const size_t head_at = static_cast<size_t>(unit.plane) * p.kv_heads + head;
  AttentionPiece piece;
  piece.begin = unit.split * p.split;
  piece.page = p.page_kv + (unit.page * heads + head_at) * (2 * kPageSize * p.head_stride) +
               piece.begin % kPageSize * p.head_stride;
  piece.cell = p.cell_kv + (unit.cell * heads + head_at) * (2 * p.head_stride);
  piece.position = unit.position;
  piece.committed = unit.committed;
  piece.first = unit.first;
  piece.count = unit.count;
  piece.chain = unit.chain;
  piece.head = head;
  piece.plane = unit.plane;
  piece.split = unit.split;
  piece.slot = (unit.partial + unit.split) * p.heads + head * p.group;
  piece.row = unit.row;
  return piece;
}

// Keeps the warp's first pieces at hand: they are the same in every layer. By whole warps, one lane
// a piece.
__device__ __forceinline__ void CachePieces() {
  BlockContext& context = Context();
  const int n = threadIdx.x % 32, kv_heads = context.p.kv_heads;
  const int piece = FirstPiece() + n * PieceStride();
  if (n < kCachedPieces && piece < context.set.units * kv_heads) {
    context.piece_cache[threadIdx.x / 32][n] =
        MakePiece(context.set.all_units[piece / kv_heads], piece % kv_heads);
  }
  __syncwarp();
}

// Whether a copier brings the warp's n-th piece.
__device__ __forceinline__ bool IsStreamed(int n) {
  const BlockContext& context = Context();
  return n < kStreamedPieces &&
         (context.streams[context.set.set][n] >> (threadIdx.x / 32) & 1) != 0;
}
// Chooses those with all positions in pages, of all sets. By all threads; a warp has whole rows of
// the table.
template <typename Kind>
__device__ __forceinline__ void ChooseStreamed() {
  BlockContext& context = Context();
  static_assert(kThreads % kWarps == 0 && kSets * kStreamedPieces * kWarps <= kThreads);
  const int warp = static_cast<int>(threadIdx.x) % kWarps, row = static_cast<int>(threadIdx.x) / kWarps;
  const int set = row / kStreamedPieces, n = row % kStreamedPieces;
  if (set >= kSets) return;
  const int i = static_cast<int>(blockIdx.x + gridDim.x * warp) + n * PieceStride();
  const int kv_heads = context.p.kv_heads;
  bool streamed = false;
  if (Kind::kCopier && i < context.plan.units[set] * kv_heads) {
    const auto* units = reinterpret_cast<const AttentionUnit*>(
        reinterpret_cast<const char*>(context.p.plan) + context.plan.unit_at[set]);
    const AttentionPiece piece = MakePiece(units[i / kv_heads], i % kv_heads);
    streamed = piece.begin + context.p.split <= piece.committed;
    context.streamed[set][n][warp] = piece.page;
  }
  const uint32_t warps = __ballot_sync(0xFFFFFFFFu, streamed) >> (threadIdx.x % 32 / kWarps * kWarps);
  if (warp == 0) context.streams[set][n] = warps & ((1u << kWarps) - 1);
}

// Has the committed keys and values of the warp's first pieces brought nearer, for the next layer.
// By one lane per piece.
__device__ __forceinline__ void PrefetchKeys(int plane_offset) {
  const BlockContext& context = Context();
  const DecodeParams& p = context.p;
  const int n = threadIdx.x % 32;
  if (n >= kCachedPieces || FirstPiece() + n * PieceStride() >= context.set.units * p.kv_heads)
    return;
  if (IsStreamed(n)) return;
  const AttentionPiece& piece = context.piece_cache[threadIdx.x / 32][n];
  const int count = min(p.split, piece.committed - piece.begin);
  if (count <= 0 || piece.plane + plane_offset >= p.planes) return;
  const bf16* keys =
      piece.page + static_cast<size_t>(plane_offset) * p.kv_heads * (2 * kPageSize * p.head_stride);
  const int bytes = count * p.head_stride * static_cast<int>(sizeof(bf16));
  Prefetch(keys, bytes);
  Prefetch(keys + kPageSize * p.head_stride, bytes);
}

// Where a lane's parts of a vector of `mail_qkv` are.
template <int kParts>
__device__ __forceinline__ auto PartsOf(const Mail* mail, int vector) {
  const Mail* from = mail + static_cast<size_t>(vector) * (kParts * 16) + threadIdx.x % 4 * 4;
  return [from](int c) { return from + c * 16; };
}

// The parts go to place `own` of the split and to those after it, which are weighted by zero but
// must not hold what the cell had before: zero times infinity is not zero.
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

// The lane's parts of a vector of `mail_qkv`, when they have come.
template <int kParts>
__device__ __forceinline__ void ReceiveParts(int vector, uint32_t stamp, uint4 (&parts)[kParts]) {
  const auto places = PartsOf<kParts>(Context().p.mail_qkv, vector);
  MailBox<kParts> box;
  box.Ask(places);
  box.Wait(stamp, places);
#pragma unroll
  for (int c = 0; c < kParts; ++c) parts[c] = box.Values(c);
  __syncwarp();
}
__device__ __forceinline__ uint4 OfLane(const uint4& v, int lane) {
  return make_uint4(__shfl_sync(0xFFFFFFFFu, v.x, lane), __shfl_sync(0xFFFFFFFFu, v.y, lane),
                    __shfl_sync(0xFFFFFFFFu, v.z, lane), __shfl_sync(0xFFFFFFFFu, v.w, lane));
}

// The values times their weights (a row of them for each query), a part of 32 elements at a time,
// to the query's partial results: the lane's eight elements of each part. slot -1: none.
template <int kGroups, int kParts>
__device__ __forceinline__ void StoreWeighted(const uint4 (&values)[kGroups][kParts],
                                              const float (&weights)[kGroups][4], const Run& run,
                                              int slot) {
  const DecodeParams& p = Context().p;
  const int t = threadIdx.x % 4;
  const size_t at = static_cast<size_t>(max(slot, 0)) * (kParts * 32) + t * 8;
  uint32_t a[kGroups];
#pragma unroll
  for (int j = 0; j < kGroups; ++j) a[j] = PackBF16(weights[j][0], weights[j][1]);
#pragma unroll
  for (int c = 0; c < kParts; ++c) {
    float o[4][4] = {};
#pragma unroll
    for (int j = 0; j < kGroups; j += 2) {
      const uint4& v0 = values[j][c];
      const uint4& v1 = values[j + 1][c];
      Mma(o[0], a[j], 0, a[j + 1], 0, Transpose(v0.x), Transpose(v1.x));
      Mma(o[1], a[j], 0, a[j + 1], 0, Transpose(v0.y), Transpose(v1.y));
      Mma(o[2], a[j], 0, a[j + 1], 0, Transpose(v0.z), Transpose(v1.z));
      Mma(o[3], a[j], 0, a[j + 1], 0, Transpose(v0.w), Transpose(v1.w));
    }
    if (slot >= 0 && (run.flags & kRunMailOut) != 0) {
#pragma unroll
      for (int k = 0; k < 4; ++k)
        PostTwo(p.mail_o + at + c * 32 + 2 * k, o[k][0], o[k][1], run.stamp);
    } else if (slot >= 0) {
      auto* to = reinterpret_cast<float4*>(p.attention_o + at + c * 32);
      to[0] = make_float4(o[0][0], o[0][1], o[1][0], o[1][1]);
      to[1] = make_float4(o[2][0], o[2][1], o[3][0], o[3][1]);
    }
    __syncwarp();
  }
}
// Their maximum and sum.
__device__ __forceinline__ void StoreWeight(const Run& run, int slot, float maximum, float sum) {
  const DecodeParams& p = Context().p;
  if (slot < 0 || threadIdx.x % 4 != 0) return;
  if ((run.flags & kRunMailOut) != 0) {
    PostTwo(p.mail_ml + static_cast<size_t>(slot) * 2, maximum, sum, run.stamp);
  } else {
    p.attention_ml[slot] = make_float2(maximum, sum);
  }
}

// A lane's parts of the keys, or of the values, of a split: place 8 j + g of it.
template <int kHead>
using KeyParts = uint4[SplitPositions(kHead) / 8][kHead / 32];

// What the next slot of the ring holds, which is given back. Rows two apart would meet the same
// banks: odd ones have their parts in exchanged order on the way.
template <int kHead, typename Ring>
__device__ __forceinline__ void TakeParts(Ring& ring, KeyParts<kHead>& to) {
  constexpr int kGroups = SplitPositions(kHead) / 8, kParts = kHead / 32;
  const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const bool odd = kParts > 1 && g % 2 != 0;
  const uint32_t from = ring.WaitSlot() + (g * kHead + t * 8) * sizeof(bf16);
  uint32_t last = 0;
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
#pragma unroll
    for (int c = 0; c < kParts; ++c) {
      to[j][c] = LoadShared16(from + static_cast<uint32_t>(8 * j * kHead) * sizeof(bf16) +
                              static_cast<uint32_t>(odd ? c ^ 1 : c) * 64);
      last |= to[j][c].x;
    }
  }
  __syncwarp();
  ring.Refill(last);
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
#pragma unroll
    for (int c = 0; c + 1 < kParts; c += 2) {
      const uint4 a = to[j][c], b = to[j][c + 1];
      to[j][c] = odd ? b : a;
      to[j][c + 1] = odd ? a : b;
    }
  }
}

// Where a piece's keys and values are, place 8 j + g of the split, and the keys on their way.
template <int kHead>
struct PieceKeys {
  static constexpr int kSplit = SplitPositions(kHead), kGroups = kSplit / 8, kParts = kHead / 32;
  const bf16* at[kGroups];
  uint32_t in_cell;  // bit j: the place is in a cell, whose value follows its key at once
  KeyParts<kHead> keys;

  __device__ __forceinline__ void Fetch(const AttentionPiece& piece, const Run& run) {
    const BlockContext& context = Context();
    const DecodeParams& p = context.p;
    const int g = threadIdx.x % 32 / 4, begin = piece.begin;
    const size_t plane_heads = static_cast<size_t>(PlaneOffset(run)) * p.kv_heads;
    const bf16* page = piece.page + plane_heads * (2 * kPageSize * kHead);
    in_cell = 0;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) at[j] = page + (8 * j + g) * kHead;
    if (begin + kSplit > piece.committed) {
      const bf16* cell = piece.cell + plane_heads * (2 * kHead);
      const bf16* cells =
          p.cell_kv +
          (static_cast<size_t>(piece.plane) * p.kv_heads + piece.head + plane_heads) * (2 * kHead);
      const size_t stride = static_cast<size_t>(p.planes) * p.kv_heads * (2 * kHead);
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

// How a piece's keys and values come into registers.
enum class KeysBy {
  kLoads,      // all on their way at once
  kTwoLoads,   // the values when the keys have been used, which needs fewer registers
  kRing,       // likewise, and all positions are committed
};

// `keys`: of the piece; `fetch_values` gets the values into registers, `then` is called when the keys
// have been used.
template <int kHead, KeysBy kBy, typename V, typename F>
__device__ __forceinline__ void Attend(const AttentionPiece& piece, const Run& run,
                                       KeyParts<kHead>& keys, V fetch_values, F then) {
  constexpr bool kEarlyValues = kBy == KeysBy::kLoads;
  constexpr int kGroups = PieceKeys<kHead>::kGroups, kParts = PieceKeys<kHead>::kParts,
                kSplit = PieceKeys<kHead>::kSplit;
  const BlockContext& context = Context();
  const DecodeParams& p = context.p;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int group = p.group, queries = piece.count * group;
  const int begin = piece.begin, own = piece.position - begin;
  // The key and value of a lone row's own position are as new as its query.
  const bool own_by_mail = kBy != KeysBy::kRing && own < kSplit && (run.flags & kRunMailIn) != 0;
  const int vectors = p.heads + 2 * p.kv_heads;  // of a row's mail
  const int own_key = piece.row * vectors + p.heads + piece.head * 2;
  // Beside a copier there are no more than are taken at once (LaunchDecode).
#pragma unroll 1
  for (int first = 0; first < (kEarlyValues ? queries : 1); first += kUnitQueries) {
    uint4 values[kGroups][kParts];
    if constexpr (kEarlyValues) fetch_values(values);
    AttentionState<kHead, kUnitQueries> state;
    const int query = first + g;
    const bool asks = query < queries;
    int row = piece.row, head = piece.head * group + (asks ? query : first);
    int slot = -1, last[1] = {piece.position};
    if (asks) {
      slot = piece.slot + query;
      if (piece.count > 1) {
        const QueryRow other = context.set.query_rows[piece.first + query / group];
        row = other.row;
        head = piece.head * group + query % group;
        slot = (other.partial + piece.split) * p.heads + head;
        last[0] = other.position;
      }
    }
    uint4 parts[kParts];
    if ((run.flags & kRunMailIn) != 0) {
      // Lanes without a query wait for the key of the own position meanwhile.
      ReceiveParts(own_by_mail && !asks ? own_key : row * vectors + head, run.stamp - 1, parts);
    } else {
      const bf16* source = p.q + (static_cast<size_t>(row) * p.heads + head) * kHead + t * 8;
#pragma unroll
      for (int c = 0; c < kParts; ++c) parts[c] = LoadCoherent16(source + c * 32);
      __syncwarp();
    }
#pragma unroll
    for (int c = 0; c < kParts; ++c) {
      state.q[c][0] = asks ? parts[c] : make_uint4(0, 0, 0, 0);
      state.q[c][1] = make_uint4(0, 0, 0, 0);
    }
    if (own_by_mail) {
      if (first + kUnitQueries <= queries) {  // all of them have one
        ReceiveParts(own_key, run.stamp - 1, parts);
      }
#pragma unroll
      for (int c = 0; c < kParts; ++c) parts[c] = OfLane(parts[c], 28 + t);
      Put(parts, own, keys);
      if constexpr (kEarlyValues) {
        ReceiveParts(own_key + 1, run.stamp - 1, parts);
        Put(parts, own, values);
      }
    }
    state.Clear();
    float weights[kGroups][4];
    state.template Weigh<true>(keys, begin, last, kBy == KeysBy::kRing || begin + kSplit <= piece.committed,
                               p.attention_scale, weights);
    if constexpr (!kEarlyValues) {
      fetch_values(values);
      if (own_by_mail) {
        ReceiveParts(own_key + 1, run.stamp - 1, parts);
        Put(parts, own, values);
      }
    }
    StoreWeight(run, slot, state.maximum[0], state.sum[0]);
    if constexpr (kEarlyValues) {
      if (first + kUnitQueries >= queries) then();
    }
    StoreWeighted(values, weights, run, slot);
    __syncwarp();
  }
}

template <int kHead, typename Kind>
__device__ __noinline__ void AttendPieces() {
  const Run run = CurrentRun();
  const BlockContext& context = Context();
  const int kv_heads = context.p.kv_heads, total = context.set.units * kv_heads;
  const auto piece_of = [&](int i, int n) {
    return n < kCachedPieces ? context.piece_cache[threadIdx.x / 32][n]
                             : MakePiece(context.set.all_units[i / kv_heads], i % kv_heads);
  };
  int i = FirstPiece();
  if (i >= total) return;
  if constexpr (Kind::kCopier) {
    Ring<Kind> ring;
#pragma unroll 1
    for (int n = 0; i < total; i += PieceStride(), ++n) {
      const AttentionPiece piece = piece_of(i, n);
      if (IsStreamed(n)) {
        KeyParts<kHead> keys;
        TakeParts<kHead>(ring, keys);
        Attend<kHead, KeysBy::kRing>(
            piece, run, keys, [&](KeyParts<kHead>& values) { TakeParts<kHead>(ring, values); },
            [] {});
      } else {
        PieceKeys<kHead> at;
        at.Fetch(piece, run);
        Attend<kHead, KeysBy::kTwoLoads>(
            piece, run, at.keys, [&](KeyParts<kHead>& values) { at.FetchValues(values); }, [] {});
      }
    }
    ring.Save();
  } else {
    AttentionPiece piece = piece_of(i, 0);
    PieceKeys<kHead> at;
    at.Fetch(piece, run);
#pragma unroll 1
    for (int n = 1;; ++n) {
      i += PieceStride();
      Attend<kHead, KeysBy::kLoads>(
          piece, run, at.keys, [&](KeyParts<kHead>& values) { at.FetchValues(values); },
          [&] {
            if (i < total) at.Fetch(piece_of(i, n), run);
          });
      if (i >= total) return;
      piece = piece_of(i, n);  // once more: to keep it would take registers
    }
  }
}

template <typename Kind>
__device__ __forceinline__ void AttentionOp() {
  switch (Context().p.head_stride) {
    case 32:
      AttendPieces<32, Kind>();
      break;
    case 64:
      AttendPieces<64, Kind>();
      break;
    case 128:
      AttendPieces<128, Kind>();
      break;
    default:
      // Mail has no such heads.
      if constexpr (!Kind::kCopier) AttendPieces<256, Kind>();
      break;
  }
}

}  // namespace loopspec::cuda

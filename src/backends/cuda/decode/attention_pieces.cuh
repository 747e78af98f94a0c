// How the attention of a set's rows is dealt to the warps: in pieces, the queries of a few rows
// that share one KV head over the positions of one split. What is common to the ways of doing one.
#pragma once

#include "backends/cuda/decode/block_context.cuh"
#include "backends/cuda/decode/device_ops.cuh"
#include "backends/cuda/decode/mail.cuh"
#include "backends/cuda/program/step_types.h"
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

// The query that a lane holds parts of, g from `first` on.
struct LaneQuery {
  bool asks;      // there is one
  int row, head;  // of it, or of some other
  int slot;       // of its partial results, or -1
  int last;       // position that it sees
};
__device__ __forceinline__ LaneQuery QueryOfLane(const AttentionPiece& piece, int first) {
  const BlockContext& context = Context();
  const int group = context.p.group, query = first + static_cast<int>(threadIdx.x % 32 / 4);
  LaneQuery of{query < piece.count * group, piece.row, piece.head * group + first, -1,
               piece.position};
  if (!of.asks) return of;
  of.head = piece.head * group + query;
  of.slot = piece.slot + query;
  if (piece.count > 1) {
    const int r = Quotient(query, group);
    const QueryRow other = context.set.query_rows[piece.first + r];
    of.row = other.row;
    of.head = piece.head * group + (query - r * group);
    of.slot = (other.partial + piece.split) * context.p.heads + of.head;
    of.last = other.position;
  }
  return of;
}

// Where a lane's parts of a vector of `mail_qkv` are.
template <int kParts>
__device__ __forceinline__ auto PartsOf(const Mail* mail, int vector) {
  const Mail* from = mail + static_cast<size_t>(vector) * (kParts * 16) + threadIdx.x % 4 * 4;
  return [from](int c) { return from + c * 16; };
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

// Where a lane leaves a query's partial results: its eight elements of each part of 32. slot -1:
// nowhere.
template <int kHead>
class PartialResults {
 public:
  __device__ __forceinline__ PartialResults(const Run& run, int slot)
      : at_(static_cast<size_t>(max(slot, 0)) * kHead + threadIdx.x % 4 * 8),
        stamp_(run.stamp),
        there_(slot >= 0),
        mail_((run.flags & kRunMailOut) != 0) {}

  // The values of a part, place 8 j + g of the split in v[j], times their weights, of which a[j]
  // has two.
  template <int kGroups>
  __device__ __forceinline__ void Add(int part, const uint4 (&v)[kGroups],
                                      const uint32_t (&a)[kGroups]) const {
    float o[4][4] = {};
#pragma unroll
    for (int j = 0; j < kGroups; j += 2) {
      Mma(o[0], a[j], 0, a[j + 1], 0, Transpose(v[j].x), Transpose(v[j + 1].x));
      Mma(o[1], a[j], 0, a[j + 1], 0, Transpose(v[j].y), Transpose(v[j + 1].y));
      Mma(o[2], a[j], 0, a[j + 1], 0, Transpose(v[j].z), Transpose(v[j + 1].z));
      Mma(o[3], a[j], 0, a[j + 1], 0, Transpose(v[j].w), Transpose(v[j + 1].w));
    }
    const size_t at = at_ + static_cast<size_t>(part) * 32;
    if (there_ && mail_) {
#pragma unroll
      for (int k = 0; k < 4; ++k)
        PostTwo(Context().p.mail_o + at + 2 * k, o[k][0], o[k][1], stamp_);
    } else if (there_) {
      float* to = Context().p.attention_o + at;
      StoreGlobal16(to, make_float4(o[0][0], o[0][1], o[1][0], o[1][1]));
      StoreGlobal16(to + 4, make_float4(o[2][0], o[2][1], o[3][0], o[3][1]));
    }
    __syncwarp();
  }

 private:
  size_t at_;
  uint32_t stamp_;
  bool there_, mail_;
};

// Weights as the products with values take them.
template <int kGroups>
__device__ __forceinline__ void PackWeights(const float (&weights)[kGroups][4],
                                            uint32_t (&a)[kGroups]) {
#pragma unroll
  for (int j = 0; j < kGroups; ++j) a[j] = PackBF16(weights[j][0], weights[j][1]);
}
// The maximum and the sum of a query's weights.
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

}  // namespace loopspec::cuda

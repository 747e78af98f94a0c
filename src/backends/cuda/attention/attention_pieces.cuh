// How the attention of a phase's rows is divided among the warps: into pieces, each the queries of
// a few rows for one KV head over a span of splits. And what all kinds of pieces share.
#pragma once

#include "backends/cuda/device/cta_context.cuh"
#include "backends/cuda/device/exchange/low_latency.cuh"
#include "backends/cuda/device/instructions.cuh"
#include "backends/cuda/device/kernel_params.h"
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

// Whether the producer warp fetches keys and values in a phase of `units` units. With few pieces,
// the warps that have a piece would delay the copies that other warps wait for.
__device__ __forceinline__ bool StreamsKeys(int units) {
  return units * Context().p.shapes.kv_heads >= 2 * static_cast<int>(gridDim.x);
}

// The first key of split number `split` of a span, for a KV head, in the plane of the stack's first
// layer. What a split has there is as large with int8 keys (device/kv_int8.cuh), keys and values
// together.
__device__ __forceinline__ const bf16* KeysOf(const KeySpan& span, int split, int head) {
  const DecodeParams& p = Context().p;
  const int per_page = kPageSize / p.shapes.split, at = span.first + split,
            page = Quotient(at, per_page);
  return p.buffers.page_kv +
         static_cast<size_t>(span.pages[page] + head) * (2 * kPageSize * p.shapes.key_words) +
         (at - page * per_page) * p.shapes.split * p.shapes.head_stride;
}

// Where a unit's keys are in a recurrence of the step.
__device__ __forceinline__ const KeySpan& SpanOf(int unit, int recurrence) {
  const PhaseContext& phase = Context().phase;
  return recurrence == 0 || phase.later_spans == nullptr
             ? phase.all_units[unit].keys
             : phase.later_spans[(recurrence - 1) * phase.units + unit];
}

// A piece of the phase's attention, in the plane of its stack's first layer.
__device__ __forceinline__ AttentionPiece MakePiece(int unit_index, int head, int recurrence = 0) {
  const DecodeParams& p = Context().p;
  const AttentionUnit& unit = Context().phase.all_units[unit_index];
  AttentionPiece piece;
  piece.begin = unit.keys.split * p.shapes.split;
  piece.page = KeysOf(SpanOf(unit_index, recurrence), 0, head);
  piece.cell =
      p.buffers.cell_kv +
      ((static_cast<size_t>(unit.cell) * p.shapes.planes + unit.plane) * p.shapes.kv_heads + head) *
          (2 * p.shapes.head_stride);
  piece.position = unit.position;
  piece.committed = unit.committed;
  piece.first = unit.first;
  piece.count = unit.count;
  piece.chain = unit.chain;
  piece.head = static_cast<int16_t>(head);
  piece.plane = unit.plane;
  piece.splits = static_cast<int16_t>(unit.keys.splits);
  piece.whole = static_cast<int16_t>(unit.keys.whole);
  piece.merged = static_cast<int16_t>(unit.merged);
  piece.partial = Quotient(unit.keys.split, unit.merged);
  piece.slot = (unit.partial + piece.partial) * p.shapes.heads + head * p.shapes.group;
  piece.row = unit.row;
  return piece;
}

// Caches the warp's first pieces in shared memory: they are the same in every layer, and without a
// plan of keys in every recurrence. By whole warps, one lane for each piece.
__device__ __forceinline__ void CachePieces(int recurrence = 0) {
  CtaContext& context = Context();
  const int n = threadIdx.x % 32, kv_heads = context.p.shapes.kv_heads;
  const int piece = FirstPiece() + n * PieceStride();
  if (n < kCachedPieces && piece < context.phase.units * kv_heads) {
    context.piece_cache[threadIdx.x / 32][n] =
        MakePiece(piece / kv_heads, piece % kv_heads, recurrence);
  }
  __syncwarp();
}

// The query of which a lane holds parts: number `first` plus lane / 4.
struct LaneQuery {
  bool valid;     // there is such a query
  int row, head;  // of the query; of another query where `valid` is false
  int slot;       // of its partial results, or -1
  int last;       // position that it sees
};
__device__ __forceinline__ LaneQuery QueryOfLane(const AttentionPiece& piece, int first) {
  const CtaContext& context = Context();
  const int group = context.p.shapes.group, query = first + static_cast<int>(threadIdx.x % 32 / 4);
  LaneQuery of{query < piece.count * group, piece.row, piece.head * group, -1, piece.position};
  if (!of.valid) return of;
  of.head = piece.head * group + query;
  of.slot = piece.slot + query;
  if (piece.count > 1) {
    const int r = Quotient(query, group);
    const QueryRow other = context.phase.query_rows[piece.first + r];
    of.row = other.row;
    of.head = piece.head * group + (query - r * group);
    of.slot = (other.partial + piece.partial) * context.p.shapes.heads + of.head;
    of.last = other.position;
  }
  return of;
}

// Where a lane's parts of a vector of exchange.qkv are.
template <int kParts>
__device__ __forceinline__ auto PartsOf(const LLWord* words, int vector) {
  const LLWord* from = words + static_cast<size_t>(vector) * (kParts * 16) + threadIdx.x % 4 * 4;
  return [from](int c) { return from + c * 16; };
}

// Receives the lane's parts of a vector of exchange.qkv.
template <int kParts>
__device__ __forceinline__ void ReceiveParts(int vector, uint32_t epoch, uint4 (&parts)[kParts]) {
  const auto places = PartsOf<kParts>(Context().p.exchange.qkv, vector);
  Receiver<kParts> receiver;
  receiver.Request(places);
  receiver.Wait(epoch, places);
#pragma unroll
  for (int c = 0; c < kParts; ++c) parts[c] = receiver.Values(c);
  __syncwarp();
}

__device__ __forceinline__ uint4 OfLane(const uint4& v, int lane) {
  return make_uint4(__shfl_sync(0xFFFFFFFFu, v.x, lane), __shfl_sync(0xFFFFFFFFu, v.y, lane),
                    __shfl_sync(0xFFFFFFFFu, v.z, lane), __shfl_sync(0xFFFFFFFFu, v.w, lane));
}

// Where a lane stores a query's partial results: its eight elements of each part of 32. Slot -1:
// nowhere.
template <int kHead>
class PartialResults {
 public:
  __device__ __forceinline__ PartialResults(const Run& run, int slot)
      : at_(static_cast<size_t>(max(slot, 0)) * kHead + threadIdx.x % 4 * 8),
        epoch_(run.epoch),
        there_(slot >= 0),
        sends_(run.flags.Has(RunFlag::kSends)) {}

  // Computes and stores part `part`: values, those of position 8 j + g of the split in v[j], times
  // their weights, two of which are in a[j].
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
    Store(part, o);
  }

  template <int kColumns>
  __device__ __forceinline__ void Store(int part, const float (&o)[4][kColumns]) const {
    const size_t at = at_ + static_cast<size_t>(part) * 32;
    if (there_ && sends_) {
#pragma unroll
      for (int k = 0; k < 4; ++k)
        SendTwo(Context().p.exchange.o + at + 2 * k, o[k][0], o[k][1], epoch_);
    } else if (there_) {
      float* to = Context().p.buffers.attention_o + at;
      StoreGlobal16(to, make_float4(o[0][0], o[0][1], o[1][0], o[1][1]));
      StoreGlobal16(to + 4, make_float4(o[2][0], o[2][1], o[3][0], o[3][1]));
    }
    __syncwarp();
  }

 private:
  size_t at_;
  uint32_t epoch_;
  bool there_, sends_;
};

// Weights as operand of the products with values.
template <int kGroups>
__device__ __forceinline__ void PackWeights(const float (&weights)[kGroups][4],
                                            uint32_t (&a)[kGroups]) {
#pragma unroll
  for (int j = 0; j < kGroups; ++j) a[j] = PackBF16(weights[j][0], weights[j][1]);
}
// Stores the maximum and the sum of a query's weights.
__device__ __forceinline__ void StoreWeight(const Run& run, int slot, float maximum, float sum) {
  const DecodeParams& p = Context().p;
  if (slot < 0 || threadIdx.x % 4 != 0) return;
  if (run.flags.Has(RunFlag::kSends)) {
    SendTwo(p.exchange.ml + static_cast<size_t>(slot) * 2, maximum, sum, run.epoch);
  } else {
    p.buffers.attention_ml[slot] = make_float2(maximum, sum);
  }
}

// Stores the partial of a state of kUnitQueries queries.
template <int kHead, typename State>
__device__ __forceinline__ void StorePartial(const Run& run, int slot, const State& state) {
  StoreWeight(run, slot, state.maximum[0], state.sum[0]);
  const PartialResults<kHead> results(run, slot);
#pragma unroll
  for (int c = 0; c < kHead / 32; ++c) results.Store(c, state.o[c]);
}

__device__ __forceinline__ AttentionPiece PieceAt(int i, int n, int recurrence = 0) {
  const CtaContext& context = Context();
  const int kv_heads = context.p.shapes.kv_heads;
  return n < kCachedPieces ? context.piece_cache[threadIdx.x / 32][n]
                           : MakePiece(i / kv_heads, i % kv_heads, recurrence);
}

// Parts of a query that a lane holds.
template <int kHead>
__device__ __forceinline__ void LoadQueryParts(const LaneQuery& query, const Run& run,
                                               uint4 (&parts)[kHead / 32]) {
  const DecodeParams& p = Context().p;
  if (run.flags.Has(RunFlag::kReceives)) {
    ReceiveParts(query.row * (p.shapes.heads + 2 * p.shapes.kv_heads) + query.head, run.epoch - 1,
                 parts);
    return;
  }
  const bf16* from = p.buffers.q +
                     (static_cast<size_t>(query.row) * p.shapes.heads + query.head) * kHead +
                     threadIdx.x % 4 * 8;
#pragma unroll
  for (int c = 0; c < kHead / 32; ++c) parts[c] = LoadCoherent16(from + c * 32);
  __syncwarp();
}

// A lane's parts of the keys, or of the values, of a split: those of its position 8 j + g.
template <int kHead>
using KeyParts = uint4[SplitPositions(kHead) / 8][kHead / 32];

}  // namespace loopspec::cuda

// Attention of many rows: a warp for each piece (attention_pieces.cuh). The piece's keys and
// values come into shared memory, once for all of its queries, sixteen of which at a time fill the
// matrix instruction. A query's bits are the same as with eight.
//
// A piece is a chain of latencies, so what counts is how much is in flight: committed keys and
// values are requested before the operations before have ended.
#pragma once

#include "backends/cuda/attention/attention_pieces.cuh"
#include "backends/cuda/device/attention_math.cuh"
#include "backends/cuda/device/wide_context.cuh"

namespace loopspec::cuda {

inline constexpr int kWideAttentionWarps = 4;

// Of a warp: the keys and then the values of a split.
inline constexpr size_t WideRoomBytes(int head_stride) {
  return static_cast<size_t>(2 * SplitPositions(head_stride) * head_stride) * sizeof(bf16);
}

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

template <int kHead>
__device__ __forceinline__ void LoadQueries(const LaneQuery& low, const LaneQuery& high,
                                            AttentionState<kHead, 2 * kUnitQueries>& state) {
  uint4 parts[2][kHead / 32];
  LoadQuery<kHead>(low, parts[0]);
  LoadQuery<kHead>(high, parts[1]);
#pragma unroll
  for (int c = 0; c < kHead / 32; ++c) {
    state.q[c][0] = parts[0][c];
    state.q[c][1] = parts[1][c];
  }
}

// Stores the lane's eight elements of part `part` of a query's partial result.
template <int kHead, int kColumns>
__device__ __forceinline__ void StorePart(int slot, int part, int half,
                                          const float (&o)[4][kColumns]) {
  if (slot < 0) return;
  float* to = Context().p.buffers.attention_o + static_cast<size_t>(slot) * kHead + part * 32 +
              threadIdx.x % 4 * 8;
  const int e = 2 * half;
  StoreGlobal16(to, make_float4(o[0][e], o[0][e + 1], o[1][e], o[1][e + 1]));
  StoreGlobal16(to + 4, make_float4(o[2][e], o[2][e + 1], o[3][e], o[3][e + 1]));
}

// The keys and values of a warp's piece, in shared memory as in a page.
template <int kHead>
class WideRoom {
 public:
  static constexpr int kSplit = SplitPositions(kHead), kGroups = kSplit / 8, kParts = kHead / 32;

  __device__ __forceinline__ WideRoom()
      : barrier_(SharedAddress(&Context().full[threadIdx.x / 32])),
        room_(SharedAddress(shared_memory) + kWideContextBytes +
              static_cast<uint32_t>(WideRoomBytes(kHead)) * (threadIdx.x / 32)) {}

  // Requests the split that begins at `begin`, whose first key is at `first`. Returns when all is
  // on its way, and all operations before have ended: keys of pages are those of earlier steps,
  // cells may be written by the operation before. `read`: depends on what was read from the room
  // before.
  __device__ __forceinline__ void Request(const AttentionPiece& piece, const Run& run,
                                          const bf16* first, int begin, uint32_t read = 0) {
    const DecodeParams& p = Context().p;
    const size_t plane_heads = static_cast<size_t>(PlaneOffset(run)) * p.shapes.kv_heads;
    const bf16* page = first + plane_heads * (2 * kPageSize * kHead);
    paged_ = begin + kSplit <= piece.committed;
    needed_ = paged_ ? kGroups : min(kGroups, (piece.position - begin) / 16 * 2 + 2);
    __syncwarp();
    if (paged_) {
      if (threadIdx.x % 32 == 0) {
        const uint32_t room = After(read, room_);
        ExpectBytes(barrier_, 2 * kBytes);
        CopyBulk(room, page, kBytes, barrier_);
        CopyBulk(room + kBytes, page + kPageSize * kHead, kBytes, barrier_);
      }
      __syncwarp();
      WaitForOperationsBefore();
      return;
    }
    WaitForOperationsBefore();
    const bf16* cell = piece.cell + plane_heads * (2 * kHead);
    const bf16* cells = p.buffers.cell_kv + (static_cast<size_t>(piece.plane) * p.shapes.kv_heads +
                                             piece.head + plane_heads) *
                                                (2 * kHead);
    const size_t stride = static_cast<size_t>(p.shapes.planes) * p.shapes.kv_heads * (2 * kHead);
    const int32_t* chain = Context().chains + piece.chain;
    const int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll 1
    for (int j = 0; j < needed_; ++j) {
      // Past the row's own position its own key and value again, which get no weight.
      const int position = min(begin + 8 * j + g, piece.position);
      const bool in_page = position < piece.committed;
      const bf16* key = in_page ? page + (position - begin) * kHead
                        : position == piece.position
                            ? cell
                            : cells + chain[position - piece.committed] * stride;
      const bf16* value = key + (in_page ? kPageSize * kHead : kHead);
#pragma unroll
      for (int c = 0; c < kParts; ++c) {
        CopyAsync16(Place(j, c), key + t * 8 + c * 32);
        CopyAsync16(Place(j, c) + kBytes, value + t * 8 + c * 32);
      }
    }
  }
  // What the lane reads it has copied itself, or TMA.
  __device__ __forceinline__ void Wait() {
    if (paged_) {
      WaitBarrier(barrier_, parity_);
      parity_ ^= 1;
    } else {
      WaitForCopies();
    }
    __syncwarp();
  }

  __device__ __forceinline__ void LoadKeys(KeyParts<kHead>& to) const {
    Load(0, to);
  }
  __device__ __forceinline__ void LoadValues(KeyParts<kHead>& to) const {
    Load(kBytes, to);
  }

 private:
  static constexpr uint32_t kBytes = kSplit * kHead * sizeof(bf16);

  // The lane's part c of position 8 j + g.
  __device__ __forceinline__ uint32_t Place(int j, int c) const {
    const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    return room_ + (static_cast<uint32_t>(8 * j) + g) * (kHead * 2) +
           static_cast<uint32_t>(c) * 64 + t * 16;
  }
  __device__ __forceinline__ void Load(uint32_t offset, KeyParts<kHead>& to) const {
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
#pragma unroll
      for (int c = 0; c < kParts; ++c) {
        to[j][c] = make_uint4(0, 0, 0, 0);
        if (j < needed_) to[j][c] = LoadShared16(Place(j, c) + offset);
      }
    }
  }

  uint32_t barrier_, room_;
  uint32_t parity_ = 0;
  bool paged_ = false;
  // Groups of eight positions that are copied and read. Those past the row's own position get no
  // weight, and zeros take their place. Even, because an instruction takes two.
  int needed_ = kGroups;
};

// Sixteen queries of the piece, of which a lane has parts of two. `wait`: for keys and values.
template <int kHead>
__device__ __forceinline__ void AttendQueries(const AttentionPiece& piece, const Run& run,
                                              const LaneQuery& low, const LaneQuery& high,
                                              WideRoom<kHead>& room, bool wait) {
  constexpr int kSplit = SplitPositions(kHead), kGroups = kSplit / 8, kParts = kHead / 32;
  const int last[2] = {low.last, high.last};
  uint32_t a[kGroups], b[kGroups];  // weights of the lower and of the higher queries
  {
    AttentionState<kHead, 2 * kUnitQueries> state;
    LoadQueries<kHead>(low, high, state);
    if (wait) room.Wait();
    __syncwarp();
    state.Clear();
    KeyParts<kHead> keys;
    room.LoadKeys(keys);
    float weights[kGroups][4];
    state.template Weigh<true>(keys, piece.begin, last, piece.begin + kSplit <= piece.committed,
                               Context().p.shapes.attention_scale, weights);
    StoreWeight(run, low.slot, state.maximum[0], state.sum[0]);
    StoreWeight(run, high.slot, state.maximum[1], state.sum[1]);
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      a[j] = PackBF16(weights[j][0], weights[j][1]);
      b[j] = PackBF16(weights[j][2], weights[j][3]);
    }
    __syncwarp();
  }
  KeyParts<kHead> values;
  room.LoadValues(values);
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

// A piece whose partials are several splits each.
template <int kHead>
__device__ __forceinline__ void AttendMergedWide(const AttentionPiece& piece,
                                                 const KeySpan& keys_at, const Run& run,
                                                 WideRoom<kHead>& room) {
  constexpr int kSplit = SplitPositions(kHead), kGroups = kSplit / 8, kParts = kHead / 32;
  const DecodeParams& p = Context().p;
  uint32_t read = 0;
#pragma unroll 1
  for (int first = 0; first < piece.count * p.shapes.group; first += 2 * kUnitQueries) {
    const LaneQuery low = QueryOfLane(piece, first),
                    high = QueryOfLane(piece, first + kUnitQueries);
    const int last[2] = {low.last, high.last};
    AttentionState<kHead, 2 * kUnitQueries> state;
    state.Clear();
    int slots[2] = {low.slot, high.slot}, left = piece.merged;
#pragma unroll 1
    for (int split = 0; split < piece.splits; ++split) {
      const int begin = piece.begin + split * kSplit;
      room.Request(piece, run, KeysOf(keys_at, split, piece.head), begin, read);
      if (split == 0) LoadQueries<kHead>(low, high, state);
      room.Wait();
      KeyParts<kHead> keys;
      room.LoadKeys(keys);
      float weights[kGroups][4];
      state.template Weigh<false>(keys, begin, last, begin + kSplit <= piece.committed,
                                  p.shapes.attention_scale, weights);
      uint32_t a[kGroups], b[kGroups];
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        a[j] = PackBF16(weights[j][0], weights[j][1]);
        b[j] = PackBF16(weights[j][2], weights[j][3]);
      }
      room.LoadValues(keys);
      read = 0;
#pragma unroll
      for (int c = 0; c < kParts; ++c) {
        uint4 part[kGroups];
#pragma unroll
        for (int j = 0; j < kGroups; ++j) {
          part[j] = keys[j][c];
          read |= part[j].x;
        }
        state.Add(c, part, a, b);
      }
      if (--left > 0 && split + 1 < piece.splits) continue;
      StoreWeight(run, slots[0], state.maximum[0], state.sum[0]);
      StoreWeight(run, slots[1], state.maximum[1], state.sum[1]);
#pragma unroll
      for (int c = 0; c < kParts; ++c) {
        StorePart<kHead>(slots[0], c, 0, state.o[c]);
        StorePart<kHead>(slots[1], c, 1, state.o[c]);
      }
      state.Clear();
      left = piece.merged;
#pragma unroll
      for (int i = 0; i < 2; ++i) slots[i] += slots[i] >= 0 ? p.shapes.heads : 0;
    }
  }
}

// kMerged: partials may be of several splits.
template <int kHead, bool kMerged>
__device__ __forceinline__ void AttendWide() {
  const CtaContext& context = Context();
  const Run run = CurrentRun();
  const int kv_heads = context.p.shapes.kv_heads;
  const int i =
      static_cast<int>(blockIdx.x) * kWideAttentionWarps + static_cast<int>(threadIdx.x) / 32;
  if (i >= context.phase.units * kv_heads) return;
  const AttentionPiece piece = MakePiece(i / kv_heads, i % kv_heads);
  const int queries = piece.count * context.p.shapes.group;
  WideRoom<kHead> room;
  if constexpr (kMerged) {
    AttendMergedWide<kHead>(piece, context.phase.all_units[i / kv_heads].keys, run, room);
    return;
  }
  // Before anything is waited for: where queries are is in the plan.
  LaneQuery low = QueryOfLane(piece, 0), high = QueryOfLane(piece, kUnitQueries);
  room.Request(piece, run, piece.page, piece.begin);
#pragma unroll 1
  for (int first = 0;;) {
    AttendQueries<kHead>(piece, run, low, high, room, first == 0);
    first += 2 * kUnitQueries;
    if (first >= queries) return;
    low = QueryOfLane(piece, first);
    high = QueryOfLane(piece, first + kUnitQueries);
  }
}

}  // namespace loopspec::cuda

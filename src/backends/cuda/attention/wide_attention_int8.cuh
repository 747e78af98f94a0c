// Attention of many rows (wide_attention.cuh) to int8 keys and values.
#pragma once

#include "backends/cuda/attention/attention_int8.cuh"
#include "backends/cuda/attention/attention_math_int8.cuh"
#include "backends/cuda/attention/attention_pieces.cuh"
#include "backends/cuda/attention/wide_attention.cuh"
#include "backends/cuda/device/wide_context.cuh"

namespace loopspec::cuda {

// Of a warp: a split's codes and scales, of keys and values.
inline constexpr size_t WideInt8RoomBytes(int head_stride) {
  return static_cast<size_t>(2 * SplitPositions(head_stride) * (head_stride + 4));
}

// The keys and values of a warp's piece, in shared memory as in a page.
template <int kHead>
class WideInt8Room {
 public:
  using Block = Int8Block<kHead>;

  __device__ __forceinline__ WideInt8Room()
      : barrier_(SharedAddress(&Context().full[threadIdx.x / 32])),
        room_(reinterpret_cast<std::byte*>(shared_memory) + kWideContextBytes +
              WideInt8RoomBytes(kHead) * (threadIdx.x / 32)) {}

  // As WideRoom::Request.
  __device__ __forceinline__ void Request(const AttentionPiece& piece, const Run& run,
                                          const bf16* first, int begin, uint32_t read = 0) {
    const DecodeParams& p = Context().p;
    const size_t plane_heads = static_cast<size_t>(PlaneOffset(run)) * p.shapes.kv_heads;
    const SplitPlace<kHead> place(first, begin, PageHeads(run));
    paged_ = begin + Block::kSplit <= piece.committed;
    needed_ = paged_ ? Block::kGroups : min(Block::kGroups, (piece.position - begin) / 8 + 1);
    __syncwarp();
    if (paged_) {
      if (threadIdx.x % 32 == 0) {
        if (written_) FenceBeforeCopies();
        const uint32_t room = After(read, SharedAddress(room_));
        ExpectBytes(barrier_, 2 * Block::kCodeBytes + Block::kScaleBytes);
        CopyBulk(room, place.codes, 2 * Block::kCodeBytes, barrier_);
        CopyBulk(room + 2 * Block::kCodeBytes, place.scales, Block::kScaleBytes, barrier_);
      }
      __syncwarp();
      WaitForOperationsBefore();
      return;
    }
    written_ = true;
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
      const bf16* from = (position < piece.committed || position == piece.position
                              ? cell
                              : cells + chain[position - piece.committed] * stride) +
                         t * 8;
#pragma unroll 1
      for (int which = 0; which < 2; ++which) {
        if (in_page) CopyFromPage(place, which, 8 * j + g);
        __syncwarp();
        if (__all_sync(0xFFFFFFFFu, in_page)) continue;
        uint4 parts[Block::kParts];
#pragma unroll
        for (int c = 0; c < Block::kParts; ++c)
          parts[c] = LoadCoherent16(from + which * kHead + c * 32);
        uint32_t codes[Block::kRegisters];
        const float scale = RoundToCodes(parts, codes);
        if (!in_page)
          Block::Store(room_, room_ + 2 * Block::kCodeBytes, which, 8 * j + g, codes, scale);
        __syncwarp();
      }
    }
  }
  // Returns when all lanes may read what was requested.
  __device__ __forceinline__ void Wait() {
    if (paged_) {
      WaitBarrier(barrier_, parity_);
      parity_ ^= 1;
    } else {
      WaitForCopies();
    }
    __syncwarp();
  }

  // `which`: 0 keys, 1 values. Returns something that depends on what was loaded.
  __device__ __forceinline__ uint32_t Load(int which, typename Block::Codes& codes,
                                           typename Block::Scales& scales) const {
    const uint32_t room = SharedAddress(room_);
    const int t = static_cast<int>(threadIdx.x) % 4;
    uint32_t read = 0;
#pragma unroll
    for (int j = 0; j < Block::kGroups; ++j) {
      scales[j] = make_float2(0.0f, 0.0f);
#pragma unroll
      for (int r = 0; r < Block::kRegisters; ++r) codes[j][r] = 0;
      if (j >= needed_) continue;
      read |= Block::LoadShared(room, which, j, codes[j]);
      const uint2 pair =
          LoadShared8(room + static_cast<uint32_t>(2 * Block::kCodeBytes +
                                                   Block::ScaleAt(which, 8 * j + 2 * t)));
      scales[j] = make_float2(__uint_as_float(pair.x), __uint_as_float(pair.y));
      read |= pair.x;
    }
    return read;
  }

 private:
  // The lane's part of a position that lies in a page.
  __device__ __forceinline__ void CopyFromPage(const SplitPlace<kHead>& place, int which,
                                               int position) const {
    const int t = static_cast<int>(threadIdx.x) % 4;
    if constexpr (kHead < 64) {
      const int at = Block::CodesAt(which, position, 0, t);
      CopyAsync4(SharedAddress(room_ + at), place.codes + at);
      CopyAsync4(SharedAddress(room_ + at + 4), place.codes + at + 4);
    } else {
#pragma unroll
      for (int v = 0; v < Block::kVectors; ++v) {
        const int at = Block::CodesAt(which, position, v, t);
        CopyAsync16(SharedAddress(room_ + at), place.codes + at);
      }
    }
    const int at = Block::ScaleAt(which, position);
    if (t == 0) CopyAsync4(SharedAddress(room_ + 2 * Block::kCodeBytes + at), place.scales + at);
  }

  uint32_t barrier_;
  std::byte* room_;
  uint32_t parity_ = 0;
  bool paged_ = false;
  bool written_ = false;         // by threads, not by TMA
  int needed_ = Block::kGroups;  // groups of eight positions that are there; others weigh nothing
};

// 8 kHalves queries over the splits of a piece, from number `first` on. kMerged: several splits may
// be a partial.
template <int kHead, bool kMerged, int kHalves>
__device__ __forceinline__ void AttendQueriesInt8(const AttentionPiece& piece,
                                                  const KeySpan& keys_at, const Run& run, int first,
                                                  WideInt8Room<kHead>& room) {
  using Block = Int8Block<kHead>;
  constexpr int kGroups = Block::kGroups;
  const DecodeParams& p = Context().p;
  const bool request = kMerged || first == 0;  // otherwise the split is there
  LaneQuery queries[kHalves];
  int last[kHalves], slots[kHalves], left = piece.merged;
#pragma unroll
  for (int i = 0; i < kHalves; ++i) {
    queries[i] = QueryOfLane(piece, first + i * kUnitQueries);
    last[i] = queries[i].last;
    slots[i] = queries[i].slot;
  }
  Int8State<kHead, kHalves * kUnitQueries> state;
  const auto set_queries = [&] {
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
      uint4 parts[Block::kParts];
      LoadQuery<kHead>(queries[i], parts);
      __syncwarp();
      state.SetQuery(i, queries[i].valid, parts, p.shapes.attention_scale);
    }
    state.Clear();
  };
  const auto store = [&](int c, const float(&o)[4][2 * kHalves]) {
#pragma unroll
    for (int i = 0; i < kHalves; ++i) StorePart<kHead>(slots[i], c, i, o);
    __syncwarp();
  };
  if constexpr (kMerged) {
    WaitForOperationsBefore();
    set_queries();
  }
  uint32_t read = 0;
#pragma unroll 1
  for (int split = 0; split < (kMerged ? piece.splits : 1); ++split) {
    const int begin = piece.begin + split * Block::kSplit;
    const bf16* first_key = kMerged ? KeysOf(keys_at, split, piece.head) : piece.page;
    if (request) room.Request(piece, run, first_key, begin, read);
    if constexpr (!kMerged) set_queries();
    if (request) room.Wait();
    __syncwarp();
    typename Block::Codes codes;
    typename Block::Scales scales;
    float weights[kGroups][4];
    room.Load(0, codes, scales);
    state.Score(codes, scales, weights);
    state.template Soften<!kMerged>(begin, last, begin + Block::kSplit <= piece.committed, weights);
    read = room.Load(1, codes, scales);
    const WeightDigits<kGroups, kHalves> digits(weights, scales);
    if constexpr (kMerged) {
      state.Add(codes, digits);
      if (--left > 0 && split + 1 < piece.splits) continue;
    }
#pragma unroll
    for (int i = 0; i < kHalves; ++i) StoreWeight(run, slots[i], state.maximum[i], state.sum[i]);
#pragma unroll
    for (int c = 0; c < Block::kParts; ++c) {
      if constexpr (kMerged) {
        store(c, state.o[c]);
      } else {
        float o[4][2 * kHalves] = {};
        state.AddPart(c, codes, digits, o);
        store(c, o);
      }
    }
    if constexpr (kMerged) {
      state.Clear();
      left = piece.merged;
#pragma unroll
      for (int i = 0; i < kHalves; ++i) slots[i] += slots[i] >= 0 ? p.shapes.heads : 0;
    }
  }
}

template <int kHead, bool kMerged>
__device__ __forceinline__ void AttendWideInt8() {
  const CtaContext& context = Context();
  const Run run = CurrentRun();
  const int kv_heads = context.p.shapes.kv_heads;
  const int i =
      static_cast<int>(blockIdx.x) * kWideAttentionWarps + static_cast<int>(threadIdx.x) / 32;
  if (i >= context.phase.units * kv_heads) return;
  const AttentionPiece piece = MakePiece(i / kv_heads, i % kv_heads, run.recurrence);
  const KeySpan& keys = SpanOf(i / kv_heads, run.recurrence);
  const int queries = piece.count * context.p.shapes.group;
  WideInt8Room<kHead> room;
  // Few queries, which is what decoding has mostly, are half the work.
  if (queries <= kUnitQueries) {
    AttendQueriesInt8<kHead, kMerged, 1>(piece, keys, run, 0, room);
    return;
  }
#pragma unroll 1
  for (int first = 0; first < queries; first += 2 * kUnitQueries)
    AttendQueriesInt8<kHead, kMerged, 2>(piece, keys, run, first, room);
}

}  // namespace loopspec::cuda

// The stream of weights that one warp consumes in the course of a step.
//
// Which weights a warp reads, and in what order, does not depend on any activation. So each warp keeps a ring of shared
// memory filled from its own list, ahead of the barriers between operations: memory stays busy while the arithmetic waits.
// A slot holds kTileRows rows by kBlockK elements (2 KiB); the copies that refill the slots of a tile are issued when the
// tile was read. From Hopper on the copy engine fills them (a fence then does not wait for copies under way); before, the
// warp's own asynchronous copies do.
#pragma once

#include "backends/cuda/block_context.cuh"
#include "backends/cuda/device_ops.cuh"
#include "backends/cuda/step_types.h"

namespace loopspec::cuda {

inline constexpr int kSlotBytes = kTileRows * kBlockK * static_cast<int>(sizeof(bf16));

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define LOOPSPEC_COPY_ENGINE 1
#else
#define LOOPSPEC_COPY_ENGINE 0
#endif

__device__ __forceinline__ int TilesPerHead(const DecodeParams& p) { return (p.head_dim / 2 + 7) / 8; }

// Which rows of the matrix the two halves of a tile hold. They pair up what the epilogue needs together: rows i and
// i + head_dim / 2 of a head for the rotation, gate and up of one output.
__device__ __forceinline__ void TileRows(const DecodeParams& p, MatrixKind kind, int tile, int& first, int& second) {
  if (kind == MatrixKind::kGateUp) {
    first = tile * 8;
    second = p.ff + tile * 8;
    return;
  }
  first = tile * kTileRows;
  if (kind == MatrixKind::kQkv || kind == MatrixKind::kQkvRaw) {
    const int per_head = TilesPerHead(p), qk_heads = p.heads + p.kv_heads;
    const int head = tile / per_head;
    if (head < qk_heads) {
      first = head * p.head_dim + tile % per_head * 8;
      second = first + p.head_dim / 2;
      return;
    }
    first = qk_heads * p.head_dim + (tile - qk_heads * per_head) * kTileRows;
  }
  second = first + 8;
}

// A slot is two groups of eight rows of 128 bytes; the 16-byte parts of row r are exchanged by r. The rows that lanes
// (g, t) read are ordered so that eight neighbouring lanes touch every bank once.
__device__ __forceinline__ int RowOfLane(int g) { return g >> 1 | (g & 1) << 2; }

template <int kSlots>
class WeightStream {
 public:
  static constexpr uint32_t kRingBytes = kSlots * kSlotBytes;

  // Takes up the warp's stream where Save left it.
  __device__ __forceinline__ explicit WeightStream(uint32_t ring) : s_(Context().streams[threadIdx.x / 32]) {
    ring_ = ring + threadIdx.x / 32 * kRingBytes;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, row = RowOfLane(g);
    read_offset_ = static_cast<uint32_t>(row * 128 + (t ^ row) * 16);
    if (s_.matrix >= 0) matrix_ = &Context().shares[s_.matrix];
  }

  __device__ __forceinline__ void Save() const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) Context().streams[threadIdx.x / 32] = s_;
    __syncwarp();
  }

  // Before the first operation of a step. The block synchronises before anyone waits.
  __device__ __forceinline__ void Start() {
    s_ = {};
    s_.matrix = -1;
    if constexpr (LOOPSPEC_COPY_ENGINE) {
      if (threadIdx.x % 32 == 0) {
        for (int i = 0; i < kSlots; ++i) InitBarrier(Barrier(static_cast<uint32_t>(i) * kSlotBytes));
        FenceBarrierInit();
      }
      __syncwarp();
    }
    Advance();
    Refill(kSlots);
    Save();
  }

  // Waits for the oldest slot and reads this lane's fragments: two rows, two halves of the block. `kUnfilled` slots were
  // read before it and not refilled.
  template <int kUnfilled>
  __device__ __forceinline__ void Read(uint4 (&low)[2], uint4 (&high)[2]) {
    if constexpr (LOOPSPEC_COPY_ENGINE) {
      WaitBarrier(Barrier(s_.read_slot), s_.phase);
    } else {
      WaitCopies<kSlots - 1 - kUnfilled>();
      __syncwarp();
    }
    const uint32_t at = ring_ + s_.read_slot + read_offset_;
    low[0] = LoadShared16(at);
    high[0] = LoadShared16(at + 1024);
    low[1] = LoadShared16(at ^ 64);
    high[1] = LoadShared16((at ^ 64) + 1024);
    s_.read_slot += kSlotBytes;
    if (s_.read_slot == kRingBytes) {
      s_.read_slot = 0;
      s_.phase ^= 1;
    }
  }

  // Starts the copies into `slots` slots that were read.
  __device__ __forceinline__ void Refill(int slots) {
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < slots; ++i) {
      if (s_.matrix >= 0) {
        Copy();
        s_.block += kWarps * kBlockK;
        if (s_.block >= s_.block_end) {
          ++s_.tile;
          if (s_.tile == s_.tile_end) {
            Advance();
          } else {
            StartTile();
          }
        }
      }
      if constexpr (!LOOPSPEC_COPY_ENGINE) CommitCopies();
      s_.fill_slot = s_.fill_slot + kSlotBytes == kRingBytes ? 0 : s_.fill_slot + kSlotBytes;
    }
  }

 private:
  __device__ __forceinline__ uint32_t Barrier(uint32_t slot) const {
    const auto* first = &Context().full[threadIdx.x / 32 * kMaxSlots];
    return static_cast<uint32_t>(__cvta_generic_to_shared(first)) + slot / kSlotBytes * 8;
  }

  __device__ __forceinline__ void Copy() {
    const uint32_t to = ring_ + s_.fill_slot;
    if constexpr (LOOPSPEC_COPY_ENGINE) {
      if (threadIdx.x % 32 == 0) {
        const uint32_t barrier = Barrier(s_.fill_slot);
        ExpectBytes(barrier, kSlotBytes);
        CopyTile(to, matrix_->map, s_.block, s_.first_row, barrier);
        CopyTile(to + 1024, matrix_->map, s_.block, s_.second_row, barrier);
      }
    } else {
      const int r = threadIdx.x % 32 / 8, part = threadIdx.x % 8, last = matrix_->rows - 1;
      const bf16* from = matrix_->weights + s_.block + part * 8;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Rows past the end read the last one; the epilogue drops them.
        const int row = r + 4 * (i & 1);
        const int source = min((i < 2 ? s_.first_row : s_.second_row) + row, last);
        CopyAsync16(to + (i / 2) * 1024 + row * 128 + (part ^ row) * 16, from + static_cast<size_t>(source) * matrix_->ld);
      }
    }
  }

  __device__ __forceinline__ void StartTile() {
    s_.block = (matrix_->block_begin + static_cast<int>(threadIdx.x) / 32) * kBlockK;
    TileRows(Context().p, matrix_->kind, s_.tile, s_.first_row, s_.second_row);
  }

  // Moves on to the warp's next pass over a matrix that it has a share of.
  __device__ __forceinline__ void Advance() {
    const StreamOrder& order = Context().order;
    if (s_.matrix < 0 || ++s_.pass >= order.passes[s_.set]) {
      s_.pass = 0;
      for (;;) {
        ++s_.matrix;
        if (order.passes[s_.set] == 0) s_.matrix = order.end[s_.set];
        if (s_.matrix == order.end[s_.set]) {
          if (s_.set == kSetCore && order.passes[s_.set] > 0 && ++s_.repeat < order.recurrences) {
            s_.matrix = order.end[kSetPrelude] - 1;
            continue;
          }
          s_.matrix = order.end[s_.set] - 1;
          if (++s_.set == kSets) {
            s_.matrix = -1;
            return;
          }
          continue;
        }
        matrix_ = &Context().shares[s_.matrix];
        if (matrix_->tile_count > 0 && matrix_->block_begin + static_cast<int>(threadIdx.x) / 32 < matrix_->block_end) break;
      }
    }
    s_.tile = matrix_->tile_begin;
    s_.tile_end = matrix_->tile_begin + matrix_->tile_count;
    s_.block_end = matrix_->block_end * kBlockK;
    StartTile();
  }

  StreamState s_;
  const MatrixShare* matrix_ = nullptr;
  uint32_t ring_, read_offset_;
};

}  // namespace loopspec::cuda

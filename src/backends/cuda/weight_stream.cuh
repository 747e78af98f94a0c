// The stream of weights that one warp consumes in the course of a step.
//
// Which weights a warp reads, and in what order, does not depend on any activation. So each warp keeps a ring of shared
// memory filled from its own list, ahead of the barriers between operations: memory stays busy while the arithmetic waits.
// A slot holds kTileRows rows by kBlockK elements (4 KiB); the copies that refill the slots of a tile are issued when the
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

// A slot is, for each 64 elements of k, sixteen rows of 128 bytes; the 16-byte parts of row r are exchanged by r % 8. The
// rows that lanes (g, t) read are ordered so that eight neighbouring lanes touch every bank once.
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

  // Waits for the oldest slot and reads this lane's fragments: two rows, four quarters of the block. `kUnfilled` slots were
  // read before it and not refilled.
  template <int kUnfilled>
  __device__ __forceinline__ void Read(uint4 (&low)[4], uint4 (&high)[4]) {
    if constexpr (LOOPSPEC_COPY_ENGINE) {
      WaitBarrier(Barrier(s_.read_slot), s_.phase);
    } else {
      WaitCopies<kSlots - 1 - kUnfilled>();
      __syncwarp();
    }
    const uint32_t at = ring_ + s_.read_slot + read_offset_;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t quarter = (i % 2 == 0 ? at : at ^ 64) + i / 2 * 2048;
      low[i] = LoadShared16(quarter);
      high[i] = LoadShared16(quarter + 1024);
    }
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
        CopyTile(to, matrix_->map, s_.block / 64, s_.tile * kTileRows, barrier);
      }
    } else {
      const int r = threadIdx.x % 32 / 8, part = threadIdx.x % 8;
      const bf16* from = matrix_->weights + (static_cast<size_t>(s_.tile) * kTileRows + r) * matrix_->ld + s_.block + part * 8;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int row = r + 4 * (i % 4);
        CopyAsync16(to + i / 4 * 2048 + row * 128 + (part ^ (row & 7)) * 16,
                    from + static_cast<size_t>(i % 4 * 4) * matrix_->ld + i / 4 * 64);
      }
    }
  }

  __device__ __forceinline__ void StartTile() {
    s_.block = (matrix_->block_begin + static_cast<int>(threadIdx.x) / 32) * kBlockK;
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

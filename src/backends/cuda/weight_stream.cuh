// The stream of weights that a block consumes in the course of a step.
//
// Which weights a warp reads, and in what order, does not depend on any activation. So each warp
// has a ring of shared memory that is kept filled from its own list, ahead of the barriers between
// operations: memory stays busy while the arithmetic waits. A slot holds kTileRows rows by kBlockK
// elements (4 KiB); a barrier per slot says when it is full. When a warp has read its part of a
// tile it has the slots refilled: from Hopper on by the copy engine, one instruction per slot;
// before, by its own asynchronous copies.
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

// A slot is, for each 64 elements of k, sixteen rows of 128 bytes; the 16-byte parts of row r are
// exchanged by r % 8. The rows that lanes (g, t) read are ordered so that eight neighbouring lanes
// touch every bank once.
__device__ __forceinline__ int RowOfLane(int g) {
  return g >> 1 | (g & 1) << 2;
}

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
// Barrier of slot `slot` of a warp's ring.
__device__ __forceinline__ uint32_t FullBarrier(int warp, int slot) {
  return SharedAddress(&Context().full[warp * kMaxSlots + slot]);
}

// By all threads, before the block first synchronises.
__device__ __forceinline__ void InitRings() {
  for (int i = threadIdx.x; i < kWarps * kMaxSlots; i += kThreads) {
    InitBarrier(SharedAddress(&Context().full[i]), LOOPSPEC_COPY_ENGINE ? 1 : 32);
  }
  if (threadIdx.x < kWarps) Context().readers[threadIdx.x] = {0, 0};
  FenceBarrierInit();
}

// ---- Reading
// ------------------------------------------------------------------------------------------------------------

template <int kSlots>
class RingReader {
 public:
  // Takes up the warp's ring where Save left it.
  __device__ __forceinline__ explicit RingReader(uint32_t rings)
      : at_(Context().readers[threadIdx.x / 32]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, row = RowOfLane(g);
    fragments_ = rings + threadIdx.x / 32 * kSlots * kSlotBytes +
                 static_cast<uint32_t>(row * 128 + (t ^ row) * 16);
    full_ = FullBarrier(static_cast<int>(threadIdx.x / 32), 0);
  }

  __device__ __forceinline__ void Save() const {
    if (threadIdx.x % 32 == 0) Context().readers[threadIdx.x / 32] = at_;
    __syncwarp();
  }

  // Waits for the next slot and reads this lane's fragments: two rows, four quarters of the block.
  __device__ __forceinline__ void Read(uint4 (&low)[4], uint4 (&high)[4]) {
    WaitBarrier(full_ + at_.slot * 8, at_.phase);
    const uint32_t at = fragments_ + at_.slot * kSlotBytes;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t quarter = (i % 2 == 0 ? at : at ^ 64) + i / 2 * 2048;
      low[i] = LoadShared16(quarter);
      high[i] = LoadShared16(quarter + 1024);
    }
    if (++at_.slot == kSlots) {
      at_.slot = 0;
      at_.phase ^= 1;
    }
  }

 private:
  RingPosition at_;
  uint32_t fragments_, full_;
};

// ---- Filling
// ------------------------------------------------------------------------------------------------------------

template <int kSlots>
class RingFiller {
 public:
  // Takes up the warp's ring where Save left it.
  __device__ __forceinline__ explicit RingFiller(uint32_t rings)
      : at_(Context().fillers[threadIdx.x / 32]), ring_(static_cast<int>(threadIdx.x / 32)) {
    slots_ = rings + threadIdx.x / 32 * kSlots * kSlotBytes;
  }
  __device__ __forceinline__ void Save() const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) Context().fillers[ring_] = at_;
    __syncwarp();
  }

  // Before the first operation of a step.
  __device__ __forceinline__ void Start() {
    at_ = {};
    at_.matrix = -1;
    NextPass();
    Fill(kSlots);
    Save();
  }

  // Starts the copies into the ring's next `slots` slots, which the warp has read.
  __device__ __forceinline__ void Fill(int slots) {
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < slots && at_.matrix >= 0; ++i) {
      const MatrixShare& share = Context().shares[at_.matrix];
      const uint32_t to = slots_ + static_cast<uint32_t>(at_.slot) * kSlotBytes,
                     full = FullBarrier(ring_, at_.slot);
      if constexpr (LOOPSPEC_COPY_ENGINE) {
        if (threadIdx.x % 32 == 0) {
          ExpectBytes(full, kSlotBytes);
          CopyTile(to, share.map, at_.block * (kBlockK / 64), at_.tile * kTileRows, full);
        }
      } else {
        CopySlot(share, at_.tile, at_.block, to, full);
      }
      Step();
    }
  }

 private:
  // The warp's own copies of one slot; every lane's arrival on `full` follows its copies.
  static __device__ __forceinline__ void CopySlot(const MatrixShare& share, int tile, int block,
                                                  uint32_t to, uint32_t full) {
    const int r = threadIdx.x % 32 / 8, part = threadIdx.x % 8;
    const bf16* from = share.weights + (static_cast<size_t>(tile) * kTileRows + r) * share.ld +
                       block * kBlockK + part * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = r + 4 * (i % 4);
      CopyAsync16(to + i / 4 * 2048 + row * 128 + (part ^ (row & 7)) * 16,
                  from + static_cast<size_t>(i % 4 * 4) * share.ld + i / 4 * 64);
    }
    ArriveAfterCopies(full);
  }

  __device__ __forceinline__ void Step() {
    at_.slot = at_.slot + 1 == kSlots ? 0 : at_.slot + 1;
    at_.block += kWarps;
    if (at_.block < at_.block_end) return;
    if (++at_.tile == at_.tile_end) {
      NextPass();
    } else {
      at_.block = Context().shares[at_.matrix].block_begin + ring_;
    }
  }

  // Moves on to the warp's next pass over a matrix that it has a share of.
  __device__ __forceinline__ void NextPass() {
    const BlockContext& context = Context();
    const StreamOrder& order = context.order;
    if (at_.matrix < 0 || ++at_.pass >= order.passes[at_.set]) {
      at_.pass = 0;
      for (;;) {
        ++at_.matrix;
        if (order.passes[at_.set] == 0) at_.matrix = order.end[at_.set];
        if (at_.matrix == order.end[at_.set]) {
          if (at_.set == kSetCore && order.passes[at_.set] > 0 &&
              ++at_.repeat < order.recurrences) {
            at_.matrix = order.end[kSetPrelude] - 1;
            continue;
          }
          at_.matrix = order.end[at_.set] - 1;
          if (++at_.set == kSets) {
            at_.matrix = -1;
            return;
          }
          continue;
        }
        const MatrixShare& share = context.shares[at_.matrix];
        if (share.tile_count > 0 && share.block_begin + ring_ < share.block_end) break;
      }
    }
    const MatrixShare& share = context.shares[at_.matrix];
    at_.tile = share.tile_begin;
    at_.tile_end = share.tile_begin + share.tile_count;
    at_.block = share.block_begin + ring_;
    at_.block_end = share.block_end;
  }

  FillerState at_;
  uint32_t slots_;
  int ring_;
};

}  // namespace loopspec::cuda

// The stream of weights that a block consumes in the course of a step.
//
// Which weights a warp reads, and in what order, does not depend on any activation. So each warp
// has a ring of shared memory that is kept filled from its own list, ahead of the barriers between
// operations: memory stays busy while the arithmetic waits. A slot holds kTileRows rows by kBlockK
// elements (8 KiB), the warp's part of one tile and one chunk of k; a barrier per slot says when it
// is full. When a warp has read a slot it has it refilled: from Hopper on by the copy engine, with
// one instruction; before, by its own asynchronous copies. Or it says that the slot is free, and a
// warp that does nothing else has it refilled (copier.cuh), with keys and values too.
#pragma once

#include "backends/cuda/decode/block_context.cuh"
#include "backends/cuda/decode/device_ops.cuh"
#include "backends/cuda/program/step_types.h"

namespace loopspec::cuda {

inline constexpr int kSlotBytes = kTileRows * kBlockK * static_cast<int>(sizeof(bf16));
inline constexpr int kGroupBytes = kTileRows * 128;  // of a slot: 64 elements of k

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define LOOPSPEC_COPY_ENGINE 1
#else
#define LOOPSPEC_COPY_ENGINE 0
#endif

// Barrier of slot `slot` of a warp's ring.
__device__ __forceinline__ uint32_t FullBarrier(int warp, int slot) {
  return SharedAddress(&Context().full[warp * kMaxSlots + slot]);
}

// That it may be filled again, where a warp of its own does that.
__device__ __forceinline__ uint32_t FreeBarrier(int warp, int slot) {
  return SharedAddress(&Context().free[warp * kMaxSlots + slot]);
}

// By all threads, before the block first synchronises.
__device__ __forceinline__ void InitRings() {
  for (int i = threadIdx.x; i < kWarps * kMaxSlots; i += kThreads) {
    InitBarrier(SharedAddress(&Context().full[i]), LOOPSPEC_COPY_ENGINE ? 1 : 32);
    InitBarrier(SharedAddress(&Context().free[i]), 32);
  }
  FenceBarrierInit();
}

// Chunks of a share that a warp has a block of k in: the last one may be too short for all warps.
__device__ __forceinline__ int ChunksOfWarp(const MatrixShare& share, int warp) {
  return min(static_cast<int>(share.chunk_end), (share.blocks - warp + kWarps - 1) / kWarps) -
         share.chunk_begin;
}

template <typename Kind>
__device__ __forceinline__ uint32_t SlotAddress(int warp, int slot) {
  return SharedAddress(shared_memory) +
         static_cast<uint32_t>(kRingOffset + (warp * Kind::kSlots + slot) * kSlotBytes);
}

// Where a lane keeps inputs that do not fit its registers: each warp has the room of a slot after
// the rings.
template <typename Kind>
__device__ __forceinline__ uint32_t SharedInputs() {
  const auto slot = static_cast<int>(kWarps * Kind::kSlots + threadIdx.x / 32);
  return SlotAddress<Kind>(0, slot) + threadIdx.x % 32 * static_cast<uint32_t>(sizeof(uint4));
}

// Starts the copy of the current block of `pass` into slot `slot` of a warp's ring; the copy engine
// once `read` has come (a warp's own copies follow its loads in order). By a whole warp, not
// necessarily the one whose ring it is; where a warp does nothing but copy, by one thread.
template <typename Kind>
__device__ __forceinline__ void CopyBlock(const StreamPass& pass, int slot, int warp,
                                          uint32_t read = 0) {
  const uint32_t to = SlotAddress<Kind>(warp, slot);
  const uint32_t full = FullBarrier(warp, slot);
  const int block = pass.chunk * kWarps + warp;
  if constexpr (LOOPSPEC_COPY_ENGINE) {
    if (Kind::kCopier || threadIdx.x % 32 == 0) {
      ExpectBytes(full, kSlotBytes);
      CopyTile(Kind::kCopier ? to : After(read, to), Context().p.maps + pass.matrix,
               block * (kBlockK / 64), pass.tile * kTileRows, full);
    }
  } else {
    const MatrixSource source = Context().p.sources[pass.matrix];
    const int r = threadIdx.x % 32 / 8, part = threadIdx.x % 8;
    const bf16* from = source.weights +
                       (static_cast<size_t>(pass.tile) * kTileRows + r) * source.ld +
                       block * kBlockK + part * 8;
#pragma unroll
    for (int i = 0; i < kBlockK / 16; ++i) {
      const int row = r + 4 * (i % 4);
      CopyAsync16(to + i / 4 * kGroupBytes + row * 128 + (part ^ (row & 7)) * 16,
                  from + static_cast<size_t>(i % 4 * 4) * source.ld + i / 4 * 64);
    }
    ArriveAfterCopies(full);  // every lane's arrival follows its copies
  }
}

// The description of the matrix after this one is needed next, and takes long to come.
__device__ __forceinline__ void PrefetchMapAfter(int matrix) {
  if (LOOPSPEC_COPY_ENGINE && threadIdx.x % 32 == 0 && matrix + 1 < Context().p.matrices)
    PrefetchMap(Context().p.maps + matrix + 1);
}

// Goes to the next block; false when there is none.
__device__ __forceinline__ bool StepPass(StreamPass& pass) {
  if (++pass.chunk < pass.chunk_end) return true;
  pass.chunk = pass.chunk_begin;
  return ++pass.tile < pass.tile_end;
}

// The pass over a warp's share of a matrix; no chunks where it has none.
__device__ __forceinline__ StreamPass PassOver(int matrix, int warp) {
  const MatrixShare share = Context().shares[matrix];
  const int chunks = share.tile_begin < share.tile_end ? ChunksOfWarp(share, warp) : 0;
  return {matrix,
          share.tile_begin,
          share.tile_end,
          share.chunk_begin,
          share.chunk_begin,
          share.chunk_begin + chunks};
}
__device__ __forceinline__ bool IsEmpty(const StreamPass& pass) {
  return pass.chunk_begin >= pass.chunk_end;
}

// A warp's next pass over a matrix that it has a share of; kAll: or has not, an empty one.
template <bool kAll = false>
__device__ __forceinline__ StreamPass NextPass(RingState& at, int warp) {
  const StreamOrder& order = Context().order;
  if (at.matrix >= 0 && ++at.pass < order.passes[at.set]) return PassOver(at.matrix, warp);
  at.pass = 0;
  for (;;) {
    ++at.matrix;
    if (order.passes[at.set] == 0) at.matrix = order.end[at.set];
    if (at.matrix < order.end[at.set]) {
      const StreamPass pass = PassOver(at.matrix, warp);
      if (kAll || !IsEmpty(pass)) return pass;
    } else if (at.set == kSetCore && order.passes[at.set] > 0 && ++at.repeat < order.recurrences) {
      at.matrix = order.end[kSetPrelude] - 1;
    } else {
      at.matrix = order.end[at.set] - 1;
      if (++at.set == kSets) return {kStreamEnd, 0, 0, 0, 0, 0};
    }
  }
}

__device__ __forceinline__ bool NeedsCatchUp() {
  return Context().rings[ThreadNow() / 32].now.matrix == kNotPrepared;
}

// Works out the next pass of a warp's ring and makes up for what the ring is owed. By a whole warp.
template <typename Kind>
__device__ __noinline__ void CatchUp(int warp) {
  RingState at = Context().rings[warp];
  __syncwarp();
  for (;;) {
    if (at.now.matrix == kNotPrepared) {
      at.now = NextPass(at, warp);
      at.last = at.now.matrix >= 0 && Context().order.passes[at.set] == 1
                    ? Context().order.end[at.set] - 1
                    : -1;
      if (at.now.matrix >= 0) PrefetchMapAfter(at.now.matrix);
    }
    if (at.owed == 0 || at.now.matrix == kStreamEnd) break;
    CopyBlock<Kind>(at.now, static_cast<int>((at.reads - at.owed) % Kind::kSlots), warp);
    --at.owed;
    if (!StepPass(at.now)) at.now.matrix = kNotPrepared;
  }
  if (threadIdx.x % 32 == 0) Context().rings[warp] = at;
  __syncwarp();
}

// Before the first operation of a launch: every warp fills its ring.
template <typename Kind>
__device__ __forceinline__ void StartStream() {
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (threadIdx.x % 32 == 0) {
    RingState at{};
    at.now.matrix = kNotPrepared;
    at.reads = at.owed = Kind::kSlots;  // as if all had been read
    at.matrix = -1;
    Context().rings[warp] = at;
  }
  __syncwarp();
  if constexpr (!Kind::kCopier) CatchUp<Kind>(warp);
}

// A warp's own ring in the course of an operation. Few registers, no calls.
//
// A slot is, for each 64 elements of k, sixteen rows of 128 bytes; the 16-byte parts of row r are
// exchanged by r % 8, so that neither the copy engine nor the reading of a part of eight rows meets
// a bank twice.
template <typename Kind>
class Ring {
 public:
  // Takes up the ring where Save left it.
  __device__ __forceinline__ Ring() : warp_(static_cast<int>(threadIdx.x / 32)) {
    const RingState& state = Context().rings[warp_];
    reads_ = state.reads;
    if constexpr (!Kind::kCopier) {
      now_ = state.now;
      owed_ = state.owed;
      last_ = state.last;
      matrix_ = state.matrix;
    }
    const int lane = threadIdx.x % 32, row = lane % 16, half = lane / 16;
    ring_ = SharedAddress(shared_memory) +
            static_cast<uint32_t>(kRingOffset + warp_ * Kind::kSlots * kSlotBytes + row * 128 +
                                  (half ^ row % 8) * 16);
    full_ = FullBarrier(warp_, 0);
  }
  __device__ __forceinline__ void Save() const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      RingState& state = Context().rings[warp_];
      state.reads = reads_;
      if constexpr (!Kind::kCopier) {
        state.now = now_;
        state.owed = owed_;
        // Matrices gone through on the way count as worked out.
        state.matrix = now_.matrix >= 0 ? now_.matrix : matrix_;
      }
    }
    __syncwarp();
  }

  // Waits for slot `ahead` of those not yet read to be full; returns where this lane's rows begin.
  __device__ __forceinline__ uint32_t Wait(int ahead) const {
    return ring_ + Full(ahead) * static_cast<uint32_t>(kSlotBytes);
  }
  // Waits for the next slot; returns where it begins.
  __device__ __forceinline__ uint32_t WaitSlot() const {
    return SlotAddress<Kind>(warp_, static_cast<int>(Full(0)));
  }
  // The 16 x 16 operand of elements 16 i ... of the slot.
  static __device__ __forceinline__ void Read(uint32_t slot, int i, uint32_t (&a)[4]) {
    LoadMatrix(
        (slot ^ static_cast<uint32_t>(i % 4 * 32)) + static_cast<uint32_t>(i / 4 * kGroupBytes), a);
  }

  // The next slot has been read by the whole warp, `last` last: starts the copy that fills it
  // again, or every lane says that it has read its part. Beyond the simple case, one matrix after
  // the other, the next pass has to wait for CatchUp: it belongs to a later operation.
  __device__ __forceinline__ void Refill(uint32_t last) {
    const auto slot = static_cast<int>(reads_++ % kSlots);
    if constexpr (Kind::kCopier) {
      Arrive(After(last, FreeBarrier(warp_, slot)));
    } else {
      if (now_.matrix < 0) {
        ++owed_;
        return;
      }
      CopyBlock<Kind>(now_, slot, warp_, last);
      if (StepPass(now_)) return;
      matrix_ = now_.matrix;
      if (now_.matrix < last_) {
        now_ = PassOver(now_.matrix + 1, warp_);
        PrefetchMapAfter(matrix_ + 1);
        if (!IsEmpty(now_)) return;
      }
      now_.matrix = kNotPrepared;
    }
  }

 private:
  static constexpr uint32_t kSlots = Kind::kSlots;

  // Which slot that is, when it is full.
  __device__ __forceinline__ uint32_t Full(int ahead) const {
    const uint32_t read = reads_ + static_cast<uint32_t>(ahead), slot = read % kSlots;
    WaitBarrier(full_ + slot * 8, (read / kSlots + 1) & 1);
    return slot;
  }

  uint32_t reads_;
  int warp_;
  uint32_t ring_, full_;
  // Where the warp fills it itself.
  StreamPass now_;
  uint32_t owed_;
  int last_;
  int matrix_;  // the last one gone through
};

}  // namespace loopspec::cuda

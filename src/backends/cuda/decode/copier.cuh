// A warp that does nothing but copy, beside sets of few rows: weights, and between them the keys
// and values of attention, as far as pages hold them. None of these depends on any activation.
//
// The chain of operations consists of small exchanges between blocks, and whatever queues for
// memory delays them: warps that each refill their ring as soon as they have read it send bursts.
// Here one thread fills all rings in turn, a slot at a time and no faster than memory delivers, so
// that what is copied later waits in the order of this loop and not in front of the exchanges.
#pragma once

#include "backends/cuda/decode/block_context.cuh"
#include "backends/cuda/decode/device_ops.cuh"
#include "backends/cuda/decode/weight_stream.cuh"
#include "kv/ledger.h"

namespace loopspec::cuda {

__device__ inline uint32_t CycleClock() {
  uint32_t t;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(t));
  return t;
}

// Which slot of each warp's ring is filled next, and when. What is indexed by a warp stays in
// registers: loops over the warps are unrolled.
template <typename Kind>
class SlotClock {
 public:
  __device__ __forceinline__ SlotClock() : due_(CycleClock()) {
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      slot_[w] = 0;
      parity_[w] = 1;  // that of a barrier which no one arrived at
    }
  }

  // Waits until the next slot of the warp's ring has been read, and until it is time. `interval`:
  // cycles from this copy to the next.
  __device__ __forceinline__ int Next(int warp, uint32_t interval) {
    const uint32_t slot = slot_[warp];
    WaitBarrier(FreeBarrier(warp, 0) + slot * 8, parity_[warp]);
    WaitForTime(interval);
    if (++slot_[warp] == Kind::kSlots) {
      slot_[warp] = 0;
      parity_[warp] ^= 1;
    }
    return static_cast<int>(slot);
  }

 private:
  __device__ __forceinline__ void WaitForTime(uint32_t interval) {
    while (due_ - CycleClock() - 1 < ahead_) {  // it is never further ahead
    }
    // Time that was not used is not made up for.
    const uint32_t now = CycleClock();
    due_ = (now - due_ > interval ? now : due_) + interval;
    ahead_ = interval;
  }

  uint32_t due_;                            // when the next copy may begin
  uint32_t ahead_ = 0;                      // how far ahead that was at the last one
  uint32_t slot_[kWarps], parity_[kWarps];  // of the next copy; of the reading before it
};

// Weights: the warps' rings get their blocks of a piece in turn.
template <typename Kind>
__device__ __forceinline__ void CopyPass(StreamPass pass, uint32_t interval,
                                         SlotClock<Kind>& clock) {
  const int blocks = Context().shares[pass.matrix].blocks;
  do {
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (pass.chunk * kWarps + w < blocks) CopyBlock<Kind>(pass, clock.Next(w, interval), w);
    }
  } while (StepPass(pass));
}

// Keys, then values, of the warps' streamed pieces in one layer of a set.
template <typename Kind>
__device__ __forceinline__ void CopyKeys(int set, int plane, uint32_t interval,
                                         SlotClock<Kind>& clock) {
  const DecodeParams& p = Context().p;
  const auto bytes = static_cast<uint32_t>(p.split * p.head_stride) * sizeof(bf16);
  const size_t at = static_cast<size_t>(plane) * p.kv_heads * (2 * kPageSize * p.head_stride);
#pragma unroll 1
  for (int n = 0; n < kStreamedPieces; ++n) {
    const uint32_t warps = Context().streamed_warps[set][n];
    if (warps == 0) continue;
    const bf16* const* keys = Context().streamed_keys[set][n];
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const size_t from = at + half * (kPageSize * p.head_stride);
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        if ((warps >> w & 1) == 0) continue;
        const int slot = clock.Next(w, interval);
        const uint32_t full = FullBarrier(w, slot);
        ExpectBytes(full, bytes);
        CopyBulk(SlotAddress<Kind>(w, slot), keys[w] + from, bytes, full);
      }
    }
  }
}

// By one thread of the block's last warp: everything that the rings get, in the order of the
// operations that read it.
template <typename Kind>
__device__ __noinline__ void CopyStream() {
  SlotClock<Kind> clock;
  RingState at{};
  at.matrix = -1;
  int set = -1, plane = 0;
#pragma unroll 1
  for (;;) {
    const StreamPass pass = NextPass<true>(at, 0);  // the first warp has a block in every chunk
    if (pass.matrix == kStreamEnd) return;
    PrefetchMap(Context().p.maps + min(pass.matrix + 1, Context().p.matrices - 1));
    const bool narrow = Context().plan.rows[at.set] <= kNarrowRows;
    const auto interval = static_cast<uint32_t>(Context().p.copy_interval[narrow ? 1 : 0]);
    if (!IsEmpty(pass)) CopyPass(pass, interval, clock);
    const MatrixKind kind = Context().shares[pass.matrix].kind;
    if (kind != MatrixKind::kQkv && kind != MatrixKind::kQkvRaw) continue;
    // Attention follows. Planes of a stack's layers, and of its recurrences, are neighbours.
    if (at.set != set) plane = 0;
    set = at.set;
    CopyKeys(set, plane++, interval, clock);
  }
}

}  // namespace loopspec::cuda

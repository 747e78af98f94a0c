// A warp that does nothing but copy weights, for steps whose sets all are narrow.
//
// The chain of operations consists of small exchanges between blocks, and whatever queues for
// memory delays them: eight warps that each refill their ring when they have read it send bursts.
// One warp fills all rings in turn, a slot at a time, at an even pace a little below what memory
// can do.
#pragma once

#include "backends/cuda/block_context.cuh"
#include "backends/cuda/device_ops.cuh"
#include "backends/cuda/weight_stream.cuh"

namespace loopspec::cuda {

__device__ inline uint32_t CycleClock() {
  uint32_t t;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(t));
  return t;
}

// By the block's last warp; lane w looks after the ring of warp w.
template <typename Kind>
__device__ __noinline__ void CopyStream() {
  constexpr uint32_t kSlots = Kind::kSlots;
  const int ring = static_cast<int>(threadIdx.x % 32);
  const uint32_t interval = static_cast<uint32_t>(Context().p.copy_interval);
  RingState at{};
  at.now.matrix = ring < kWarps ? kNotPrepared : kStreamEnd;
  at.matrix = -1;
  uint32_t filled = 0;          // slots of the ring, so far
  int last = kWarps - 1;        // ring that got the last copy
  uint32_t due = CycleClock();  // when the next may begin
  for (;;) {
    if (at.now.matrix == kNotPrepared) at.now = NextPass(at, ring);
    const bool left = at.now.matrix >= 0;
    bool ready = left;
    if (left && filled >= kSlots) {
      const uint32_t before = filled / kSlots - 1;  // times that the slot had been read when free
      ready = TestBarrier(FreeBarrier(ring, static_cast<int>(filled % kSlots)), before & 1);
    }
    if (__ballot_sync(0xFFFFFFFFu, left) == 0) return;
    const unsigned rings = __ballot_sync(0xFFFFFFFFu, ready);
    if (rings == 0) continue;
    // The next in turn that has room.
    const unsigned after = rings & ~((2u << last) - 1);
    last = __ffs(static_cast<int>(after != 0 ? after : rings)) - 1;
    while (static_cast<int32_t>(CycleClock() - due) < 0) {
    }
    // Time that was not used is not made up for.
    const uint32_t now = CycleClock();
    due = (static_cast<int32_t>(now - due) > static_cast<int32_t>(interval) ? now : due) + interval;
    if (ring == last) {
      CopyBlock<Kind>(at.now, static_cast<int>(filled % kSlots), ring);
      ++filled;
      if (!StepPass(at.now)) at.now.matrix = kNotPrepared;
    }
    __syncwarp();
  }
}

}  // namespace loopspec::cuda

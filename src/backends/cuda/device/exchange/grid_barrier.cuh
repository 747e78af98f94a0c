// A barrier over the grid: every CTA arrives, then waits for all. The launch is cooperative, so all
// CTAs are resident. Work that needs nothing from other CTAs may stand between the two.
#pragma once

#include "backends/cuda/device/cta_context.cuh"
#include "backends/cuda/device/instructions.cuh"
#include "backends/cuda/device/watchdog.cuh"

namespace loopspec::cuda {

__device__ __forceinline__ uint32_t* GridCounter() {
  const DecodeParams& p = Context().p;
  return &p.plan->barrier[p.phases_begin];
}

// A CTA barrier must come before, so that the release covers the writes of all its threads.
__device__ __forceinline__ void ArriveAtGrid() {
  if (ThreadNow() == 0) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(GridCounter()) : "memory");
    Context().arrivals += CtasNow();
  }
}
__device__ __forceinline__ void WaitForGrid() {
  if (ThreadNow() == 0) {
    uint32_t* const counter = GridCounter();
    const uint32_t target = Context().arrivals;
    uint32_t seen;
    do {
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    } while (seen < target && !MustGiveUp());
    // Only once: an acquire invalidates the L1 cache.
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
  }
  CtaSync();
}

}  // namespace loopspec::cuda

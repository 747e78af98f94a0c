// The watchdog: no wait lasts for ever.
//
// Waits for other CTAs look at the clock now and then, and count the time (patience.h: without what
// other processes have of the GPU). When a launch has used up its time, the CTA gives the step up:
// from then on it waits for no other CTA, and runs through the rest of its operations with whatever
// values there are. All CTAs have about the same time. Nothing but values depends on values, so the
// kernel ends in good order, about as fast as any step, and the context stays usable. The host
// learns of it from `status` and reports an error.
//
// The rings need nothing from other CTAs, so they are waited for even then. Should one make no
// progress at all, that wait ends after a number of polls.
#pragma once

#include "backends/cuda/device/cta_context.cuh"
#include "backends/cuda/device/instructions.cuh"
#include "backends/cuda/device/patience.h"

namespace loopspec::cuda {

// At the start of a launch, by one thread. `given_up`: by an earlier launch of the step.
__device__ __forceinline__ void StartWatchdog(const DecodeParams& p, bool given_up) {
  CtaContext& context = Context();
  context.looked = GlobalClock();
  context.patience = p.timeout == 0 ? ~uint64_t{0} : p.timeout;
  context.given_up = given_up ? 1 : 0;
}
// At its end, by one thread of each CTA.
__device__ __forceinline__ void EndWatchdog() {
  CtaContext& context = Context();
  if (*static_cast<volatile uint32_t*>(&context.given_up) == 0) return;
  *static_cast<volatile uint32_t*>(&context.p.plan->given_up) = 1;
  *static_cast<volatile uint32_t*>(context.p.status) = 1;
}

__device__ __forceinline__ void GiveUpStep() {
  *static_cast<volatile uint32_t*>(&Context().given_up) = 1;
}

// One look at the clock, by any thread of the CTA; true when the launch has no time left.
__device__ __forceinline__ bool LookAtClock() {
  CtaContext& context = Context();
  const uint64_t before = *static_cast<volatile uint64_t*>(&context.looked), now = GlobalClock();
  const uint64_t counted = TimeOfLook(before, now);
  // Threads that look at once count it once: the first to write.
  if (counted == 0 ||
      atomicCAS(reinterpret_cast<unsigned long long*>(&context.looked), before, now) != before)
    return false;
  if (context.patience > counted) {
    context.patience -= counted;
    return false;
  }
  return true;
}

// Whether a wait for other CTAs must end without a result; asked after every poll. The cycle
// counter decides how closely it looks, because a count of polls would take a register in the
// products: at the CTA's flag in a sixteenth of the time, at the clock about seven times a second.
// Each window of 4,096 cycles is longer than a poll takes.
__device__ __forceinline__ bool MustGiveUp() {
  uint32_t cycles;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(cycles));
  if (__builtin_expect((cycles & 0xF000) != 0, 1)) return false;
  if (*static_cast<volatile uint32_t*>(&Context().given_up) != 0) return true;
  if ((cycles & 0xFFFF000) != 0 || !LookAtClock()) return false;
  GiveUpStep();
  return true;
}

// Waits for the phase of this parity of a ring's barrier; false when it was given up. No clock
// here: registers are scarce in the products. The limit is far beyond any time that a copy can
// take.
inline constexpr uint32_t kRingPolls = 1u << 26;
__device__ __forceinline__ bool WaitForRing(uint32_t barrier, uint32_t parity) {
  uint32_t polls = 0;
#pragma unroll 1
  while (!TestBarrier(barrier, parity)) {
    if (__builtin_expect(++polls != kRingPolls, 1)) continue;
    GiveUpStep();
    return false;
  }
  return true;
}

}  // namespace loopspec::cuda

// How the watchdog counts the time that a launch has waited: by looks at the clock, each of which
// counts for a short while at most.
//
// A GPU that several processes use gives each of them slices of time. While another process has its
// slice, our kernel stands still and the clock runs on. A kernel that stands still does not look at
// the clock, so that the time until its next look, however long, counts for no more than one look.
// What adds up is about the time in which the kernel itself ran.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define LOOPSPEC_PATIENCE_FUNCTION __host__ __device__ __forceinline__
#else
#define LOOPSPEC_PATIENCE_FUNCTION inline
#endif

namespace loopspec::cuda {

// Nanoseconds. A kernel that waits looks about every 135 ms (watchdog.cuh); several threads look in
// the same window, and only the first of them counts.
inline constexpr uint64_t kShortestLook = 50'000'000;
inline constexpr uint64_t kLongestLook = 200'000'000;

// What a look at `now` counts for when the one before was at `before`; 0: it is the same look.
LOOPSPEC_PATIENCE_FUNCTION uint64_t TimeOfLook(uint64_t before, uint64_t now) {
  const uint64_t passed = now - before;
  if (passed < kShortestLook) return 0;
  return passed < kLongestLook ? passed : kLongestLook;
}

}  // namespace loopspec::cuda

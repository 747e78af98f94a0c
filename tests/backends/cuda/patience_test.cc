// What the watchdog counts: the time in which a step itself ran, not that of other processes.
#include "backends/cuda/device/patience.h"

#include <gtest/gtest.h>

namespace loopspec::cuda {
namespace {

constexpr uint64_t kMillisecond = 1'000'000, kSecond = 1'000 * kMillisecond;
constexpr uint64_t kLook = 135 * kMillisecond;  // between looks of a kernel that waits

// Counts looks as watchdog.cuh does.
struct Watch {
  uint64_t looked = 0, counted = 0;
  void Look(uint64_t now) {
    const uint64_t time = TimeOfLook(looked, now);
    if (time == 0) return;
    looked = now;
    counted += time;
  }
};

TEST(Patience, CountsEverySecondOfAKernelThatRuns) {
  Watch watch;
  uint64_t now = 0;
  while (now < 10 * kSecond) watch.Look(now += kLook);
  EXPECT_EQ(watch.counted, now);
}

TEST(Patience, CountsLooksOfManyThreadsOnce) {
  Watch watch;
  for (uint64_t look = 1; look <= 10; ++look) {
    for (uint64_t thread = 0; thread < 256; ++thread) watch.Look(look * kLook + thread * 5);
  }
  EXPECT_LE(watch.counted, 10 * kLook);
  EXPECT_GE(watch.counted, 10 * kLook - 256 * 5);
}

TEST(Patience, APauseOfAnyLengthCountsForOneLook) {
  for (const uint64_t pause : {kSecond, 60 * kSecond, 24 * 3600 * kSecond}) {
    Watch watch;
    watch.Look(kLook);
    watch.Look(kLook + pause);
    EXPECT_EQ(watch.counted, kLook + kLongestLook) << pause;
  }
}

// Slices of 2 ms in turn with other processes: only the looks that fall into our own slices happen.
// The period of the looks is not a multiple of the slices', so that they fall anywhere.
TEST(Patience, SharesOfTheGpuStretchItsTime) {
  constexpr uint64_t kSlice = 2 * kMillisecond;
  for (const uint64_t processes : {2, 4, 10}) {
    Watch watch;
    uint64_t now = 0;
    for (int look = 0; look < 100'000; ++look) {
      now += kLook + 137'000;
      if (now / kSlice % processes == 0) watch.Look(now);
    }
    const double share = static_cast<double>(watch.counted) / static_cast<double>(now);
    EXPECT_LT(share, 1.6 / static_cast<double>(processes)) << processes << " processes";
    EXPECT_GT(share, 0.8 / static_cast<double>(processes)) << processes << " processes";
  }
}

}  // namespace
}  // namespace loopspec::cuda

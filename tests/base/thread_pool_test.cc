// The team of threads: every member once, barriers that hold, more threads than cores, many pools
// at once.
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>

#include "base/thread_pool.h"

namespace loopspec {
namespace {

TEST(ThreadPool, EveryMemberRunsOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.size(), threads);
    std::vector<int> runs(static_cast<size_t>(threads));
    for (int i = 0; i < 300; ++i) {
      pool.Run([&](Worker& worker) {
        EXPECT_EQ(worker.count(), threads);
        ++runs[static_cast<size_t>(worker.index())];
      });
    }
    EXPECT_EQ(runs, std::vector<int>(static_cast<size_t>(threads), 300));
  }
}

TEST(ThreadPool, SharesCoverEverythingOnce) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    for (const int64_t n : {0, 1, 2, 5, 64, 100, 1001}) {
      for (const int64_t grain : {1, 8, 32, 2000}) {
        std::vector<int> seen(static_cast<size_t>(n));
        pool.Run([&](Worker& worker) {
          const Worker::Range mine = worker.Share(n, grain);
          EXPECT_TRUE(mine.begin % grain == 0 || mine.begin == n);
          EXPECT_TRUE(mine.end % grain == 0 || mine.end == n);
          for (int64_t i = mine.begin; i < mine.end; ++i) ++seen[static_cast<size_t>(i)];
        });
        EXPECT_EQ(seen, std::vector<int>(static_cast<size_t>(n), 1));
      }
    }
  }
}

// A chain of sums, each needing what all the others wrote before the barrier: plain memory, so that
// a thread sanitizer sees a missing order.
TEST(ThreadPool, BarriersOrderMemory) {
  for (const int threads : {2, 5, 9}) {  // more than the cores of most test machines
    ThreadPool pool(threads);
    std::vector<int64_t> values(static_cast<size_t>(threads), 1);
    std::vector<int64_t> sums(static_cast<size_t>(threads));
    constexpr int kRounds = 60;
    for (int run = 0; run < 5; ++run) {
      pool.Run([&](Worker& worker) {
        const auto me = static_cast<size_t>(worker.index());
        for (int round = 0; round < kRounds; ++round) {
          sums[me] = std::accumulate(values.begin(), values.end(), int64_t{0});
          worker.Sync();
          values[me] = sums[(me + 1) % sums.size()] % 1000003;
          worker.Sync();
        }
      });
    }
    for (const int64_t value : values) EXPECT_EQ(value, values[0]);
  }
}

TEST(ThreadPool, WakesFromSleep) {
  ThreadPool pool(3);
  int64_t total = 0;
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(
        std::chrono::milliseconds(i % 4 * 2));  // around the time at which members fall asleep
    int64_t parts[3] = {};
    pool.Run([&](Worker& worker) { parts[worker.index()] = worker.index() + 1; });
    total += parts[0] + parts[1] + parts[2];
  }
  EXPECT_EQ(total, 20 * 6);
}

TEST(ThreadPool, ManyPoolsAtOnce) {
  std::vector<std::thread> owners;
  std::vector<int64_t> totals(4);
  for (size_t o = 0; o < totals.size(); ++o) {
    owners.emplace_back([&totals, o] {
      for (int made = 0; made < 5; ++made) {
        ThreadPool pool(3);
        for (int i = 0; i < 40; ++i) {
          int64_t parts[3] = {};
          pool.Run([&](Worker& worker) {
            parts[worker.index()] = 1;
            worker.Sync();
            if (worker.index() == 0) totals[o] += parts[0] + parts[1] + parts[2];
          });
        }
      }
    });
  }
  for (std::thread& owner : owners) owner.join();
  for (const int64_t total : totals) EXPECT_EQ(total, 5 * 40 * 3);
}

TEST(ThreadPool, MadeAndDroppedUnused) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(1 + i % 5);
  EXPECT_GE(UsableCores(), 1);
}

}  // namespace
}  // namespace loopspec

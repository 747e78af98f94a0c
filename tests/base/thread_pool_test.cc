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
    pool.FixTeam(threads);
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

// Another number of members in every run: those who take part are 0, 1, ..., once each, and see
// what all others wrote in the runs before.
TEST(ThreadPool, TeamsOfChangingSize) {
  constexpr int kThreads = 5;
  ThreadPool pool(kThreads);
  std::vector<int> runs(kThreads), expected(kThreads);
  for (int i = 0; i < 400; ++i) {
    const int team = 1 + i * 7 % kThreads;
    pool.FixTeam(team);
    int64_t sum = 0;
    pool.Run([&](Worker& worker) {
      EXPECT_EQ(worker.count(), team);
      ++runs[static_cast<size_t>(worker.index())];
      worker.Sync();
      if (worker.index() == team - 1) sum = std::accumulate(runs.begin(), runs.end(), int64_t{0});
    });
    for (int m = 0; m < team; ++m) ++expected[static_cast<size_t>(m)];
    EXPECT_EQ(sum, std::accumulate(expected.begin(), expected.end(), int64_t{0}));
  }
  EXPECT_EQ(runs, expected);
}

// A member that is away for long, as a preempted one is: the others sleep meanwhile, nothing is
// lost, and the pool may choose a smaller team afterwards.
TEST(ThreadPool, AMemberThatIsAwayForLong) {
  ThreadPool pool(3);
  int64_t done = 0, expected = 0;
  for (int i = 0; i < 60; ++i) {
    std::vector<int64_t> parts(3);
    int team = 0;
    pool.Run([&](Worker& worker) {
      if (worker.index() == worker.count() - 1) {
        team = worker.count();
        if (i % 3 != 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      const Worker::Range mine = worker.Share(90);
      parts[static_cast<size_t>(worker.index())] = mine.end - mine.begin;
      worker.Sync();
      if (worker.index() == i % worker.count())
        done += std::accumulate(parts.begin(), parts.end(), int64_t{0});
    });
    EXPECT_TRUE(team >= 1 && team <= 3);
    expected += 90;
  }
  EXPECT_EQ(done, expected);
}

// A chain of sums, each needing what all the others wrote before the barrier: plain memory, so that
// a thread sanitizer sees a missing order.
TEST(ThreadPool, BarriersOrderMemory) {
  for (const int threads : {2, 5, 9}) {  // more than the cores of most test machines
    ThreadPool pool(threads);
    pool.FixTeam(threads);
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
  pool.FixTeam(3);
  int64_t total = 0;
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(
        std::chrono::milliseconds(i % 4));  // longer and shorter than members stay awake
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
        pool.FixTeam(3);
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

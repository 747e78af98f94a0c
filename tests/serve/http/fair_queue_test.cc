// Who comes next among jobs of several shares, with one thread.
#include "serve/http/fair_queue.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

namespace loopspec::test {
namespace {

using serve::FairQueue;

// Holds the only thread with a job of `share` until everything is posted; then that job calls Yield
// and ends.
class Held {
 public:
  explicit Held(const std::string& share = "first", size_t bytes = 100) {
    queue_.Post(share, 1, bytes, [this, share, bytes] {
      begun_ = true;
      begun_.notify_all();
      released_.wait(false);
      queue_.Yield(share, bytes);
      order_.push_back(share + "'s own");
    });
    begun_.wait(false);
  }
  void Post(const std::string& share, size_t bytes, const std::string& name, double weight = 1) {
    queue_.Post(share, weight, bytes, [this, name] { order_.push_back(name); });
  }
  std::vector<std::string> Order() {
    released_ = true;
    released_.notify_all();
    queue_.Join();
    return order_;
  }

 private:
  std::vector<std::string> order_;
  std::atomic<bool> begun_{false}, released_{false};
  FairQueue queue_{1};
};

using Order = std::vector<std::string>;

TEST(FairQueue, SharesTakeTurns) {
  Held held;
  for (const char* name : {"a1", "a2", "a3"}) held.Post("a", 100, name);
  held.Post("b", 100, "b1");
  EXPECT_EQ(held.Order(), (Order{"first's own", "a1", "b1", "a2", "a3"}));
}

TEST(FairQueue, ByBytesAndWeight) {
  Held held;
  held.Post("a", 300, "a1");
  held.Post("a", 300, "a2");
  for (const char* name : {"b1", "b2", "b3", "b4"}) held.Post("b", 100, name);
  EXPECT_EQ(held.Order(), (Order{"first's own", "a1", "b1", "b2", "b3", "a2", "b4"}));
  Held weighted;
  for (const char* name : {"a1", "a2"}) weighted.Post("a", 100, name);
  for (const char* name : {"b1", "b2", "b3"}) weighted.Post("b", 100, name, 2);
  EXPECT_EQ(weighted.Order(), (Order{"first's own", "a1", "b1", "b2", "a2", "b3"}));
}

TEST(FairQueue, WithinAShareTheSmallestAndTheOldestTakeTurns) {
  Held held("first", 10);
  held.Post("a", 300, "old");
  held.Post("a", 200, "middle");
  held.Post("a", 100, "small");
  held.Post("a", 50, "smaller");
  EXPECT_EQ(held.Order(), (Order{"first's own", "smaller", "old", "small", "middle"}));
}

TEST(FairQueue, ThreadsGiveWayToOthers) {
  const int usual = getpriority(PRIO_PROCESS, 0);
  int seen = -100;
  FairQueue queue(1, 3);
  queue.Post("a", 1, 1, [&] { seen = getpriority(PRIO_PROCESS, 0); });
  queue.Join();
  EXPECT_EQ(seen, std::min(usual + 3, 19));
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), usual);
}

TEST(FairQueue, ALongJobLetsSmallerOnesOfOthersPass) {
  Held held("first", 1000);
  held.Post("first", 10, "its own share's");
  held.Post("a", 900, "too large");
  held.Post("a", 500, "half");
  held.Post("b", 400, "b1");
  held.Post("b", 400, "b2");
  held.Post("b", 400, "b3");  // with this one b would have had more than the long job is worth
  EXPECT_EQ(held.Order(),
            (Order{"half", "b1", "b2", "first's own", "too large", "b3", "its own share's"}));
}

}  // namespace
}  // namespace loopspec::test

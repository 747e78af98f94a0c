// The choice of a team's size, on simulated machines: the time does not pass, it is made up.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/team_size.h"

namespace loopspec {
namespace {

// What a team of a given size gets done per second, in seconds of work.
using Machine = std::function<double(int team)>;

// Runs of a millisecond for some seconds; returns the work done per second.
double Simulate(TeamSize& size, const Machine& machine, double seconds) {
  constexpr double kRun = 1e-3;
  double work = 0.0;
  const int runs = static_cast<int>(seconds / kRun);
  for (int i = 0; i < runs; ++i) {
    const int team = size.current();
    const double rate = machine(team);
    // Whoever does not work sleeps at a barrier.
    size.Add({kRun, (team - rate) * kRun, rate * kRun});
    work += rate * kRun;
  }
  return work / seconds;
}

TEST(TeamSize, AloneTheWholeTeamWorksUnmeasured) {
  for (const int members : {1, 2, 16}) {
    TeamSize size(members);
    Simulate(
        size, [](int team) { return 0.97 * team; }, 1.0);
    EXPECT_EQ(size.current(), members);
    EXPECT_FALSE(size.measuring());
  }
}

// A team that waits for one another most of the time against one thread that does not.
TEST(TeamSize, ShrinksWhereOneAloneDoesMore) {
  TeamSize size(2);
  const Machine machine = [](int team) { return team == 2 ? 0.3 : 0.65; };
  Simulate(size, machine, 0.5);  // finds out
  EXPECT_GE(Simulate(size, machine, 5.0), 0.9 * 0.65);
}

TEST(TeamSize, StaysWholeWhereThatDoesMore) {
  TeamSize size(2);
  const Machine machine = [](int team) { return team == 2 ? 0.9 : 0.65; };
  Simulate(size, machine, 0.5);
  EXPECT_GE(Simulate(size, machine, 5.0), 0.9 * 0.9);
}

// What at most n threads can do is n: where the team does more, nothing is tried.
TEST(TeamSize, TriesNothingThatCannotWin) {
  TeamSize size(2);
  for (int i = 0; i < 2000; ++i) {
    size.Add({1e-3, 0.9e-3, 1.1e-3});
    EXPECT_EQ(size.current(), 2);
  }
  EXPECT_TRUE(size.measuring());
}

TEST(TeamSize, GrowsAgainWhenTheOthersAreGone) {
  TeamSize size(2);
  Simulate(
      size, [](int team) { return team == 2 ? 0.2 : 0.65; }, 3.0);
  Simulate(
      size, [](int team) { return 0.98 * team; }, 2.0);
  EXPECT_EQ(size.current(), 2);
  EXPECT_FALSE(size.measuring());
}

// Sixteen cores, some taken by others: a team that needs one of those waits for it half the time.
TEST(TeamSize, FindsTheFreeCoresOfALargeMachine) {
  for (const int taken : {1, 2, 5, 12, 15}) {
    TeamSize size(16);
    const Machine machine = [&](int team) { return team > 16 - taken ? 0.5 * team : 1.0 * team; };
    Simulate(size, machine, 6.0);
    const double best = std::max(16.0 - taken, 8.0);
    EXPECT_GE(Simulate(size, machine, 10.0), 0.85 * best) << taken << " cores taken";
  }
}

}  // namespace
}  // namespace loopspec

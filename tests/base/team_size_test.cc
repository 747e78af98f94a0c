// The choice of a team's size, on simulated machines: no time passes, it is made up.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "base/team_size.h"

namespace loopspec {
namespace {

constexpr double kRun = 1e-3;  // seconds

// Every member on a core of its own. Of core i, others leave `share[i]`; the team works while all
// its members have their cores, which is a part `overlap` of what the poorest of them has.
struct Machine {
  std::vector<double> share;
  double overlap = 1.0;

  double Rate(int team) const {  // seconds of work per second
    const double least = *std::min_element(share.begin(), share.begin() + team);
    return team * least * (team > 1 ? overlap : 1.0);
  }
  std::vector<MemberTime> Run(int team) const {
    std::vector<MemberTime> times;
    for (int i = 0; i < team; ++i) {
      const double cpu = Rate(team) / team * kRun;
      const double without_core = cpu / share[static_cast<size_t>(i)] - cpu;
      times.push_back({cpu, 0.0, kRun - cpu - without_core});
    }
    return times;
  }
};

// Returns the work done per second.
double Simulate(TeamSize& size, const Machine& machine, double seconds) {
  double work = 0.0;
  const int runs = static_cast<int>(seconds / kRun);
  for (int i = 0; i < runs; ++i) {
    const int team = size.current();
    work += machine.Rate(team) * kRun;
    size.Add(kRun, machine.Run(team));
  }
  return work / seconds;
}

TEST(TeamSize, AloneTheWholeTeamWorks) {
  for (const size_t members : {1, 2, 16}) {
    TeamSize size(static_cast<int>(members));
    Simulate(size, {std::vector<double>(members, 1.0), 0.97}, 1.0);
    EXPECT_EQ(size.current(), members);
    EXPECT_FALSE(size.measuring());
  }
}

// Two cores, one of them shared: one member alone has a whole core.
TEST(TeamSize, ShrinksWhereFewerDoMore) {
  const Machine machine = {{1.0, 0.5}, 0.8};
  TeamSize size(2);
  EXPECT_GE(Simulate(size, machine, 0.5), 0.9);  // finds out soon
  EXPECT_GE(Simulate(size, machine, 5.0), 0.98);
}

TEST(TeamSize, StaysWholeWhereThatDoesMore) {
  const Machine machine = {{0.5, 0.5}, 0.7};
  TeamSize size(2);
  EXPECT_GE(Simulate(size, machine, 5.0), 0.699);  // one alone: 0.5
  EXPECT_EQ(size.current(), 2);
  EXPECT_TRUE(size.measuring());
}

// One alone promises a whole core and gets half of it, as others follow it there.
TEST(TeamSize, GivesUpWhatDoesNotKeepItsPromise) {
  TeamSize size(2);
  double work = 0.0;
  for (int i = 0; i < 5000; ++i) {
    const bool whole = size.current() == 2;
    std::vector<MemberTime> times = {{0.35 * kRun, 0.0, 0.65 * kRun}};
    if (whole) times.push_back({0.35 * kRun, 0.0, 0.1 * kRun});
    work += (whole ? 0.7 : 0.35) * kRun;
    size.Add(kRun, times);
  }
  EXPECT_GE(work / 5.0, 0.9 * 0.7);
}

TEST(TeamSize, GrowsAgainWhenTheOthersAreGone) {
  TeamSize size(2);
  Simulate(size, {{1.0, 0.3}, 0.8}, 3.0);
  EXPECT_EQ(size.current(), 1);
  Simulate(size, {{1.0, 1.0}, 0.98}, 4.0);
  EXPECT_EQ(size.current(), 2);
  EXPECT_FALSE(size.measuring());
}

TEST(TeamSize, FindsTheFreeCoresOfALargeMachine) {
  for (const int taken : {1, 2, 5, 7, 12, 15}) {
    Machine machine = {std::vector<double>(16, 1.0), 1.0};
    for (int i = 0; i < taken; ++i) machine.share[15 - static_cast<size_t>(i)] = 0.5;
    TeamSize size(16);
    const double best = std::max(16.0 - taken, 8.0);
    EXPECT_GE(Simulate(size, machine, 10.0), 0.9 * best) << taken << " cores taken";
  }
}

}  // namespace
}  // namespace loopspec

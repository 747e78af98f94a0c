#include "engine/load/step_cost.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/fake_backend.h"
#include "tests/support/temporary_folder.h"

namespace loopspec {
namespace {

StepCost Costs() {
  StepCost cost;
  cost.recurrence = {1.0, 1.1, 1.2, 1.5, 2.0, 3.5, 7.0, 14.0, 28.0};
  return cost;
}

TEST(StepCost, SpreadIsTheWorstOfTheRowCounts) {
  StepCost slow = Costs();
  EXPECT_EQ(CostSpread(Costs(), slow), 1);
  slow.recurrence[3] *= 1.5;
  EXPECT_NEAR(CostSpread(Costs(), slow), 1.5, 1e-12);
  EXPECT_NEAR(CostSpread(slow, Costs()), 1.5, 1e-12);
  slow.recurrence = Costs().recurrence;
  slow.step = 1;  // part of every step
  EXPECT_NEAR(CostSpread(slow, Costs()), 2, 1e-12);
}

TEST(StepCost, AnotherRowCostsNoMoreThanTheFirst) {
  StepCost cost = Costs();
  cost.readout = 0.2;
  cost.readout_row = 15;
  cost.prelude = 0.1;
  cost.prelude_row = 0.05;
  cost.recurrence[2] = 40;
  BoundByFirstRow(cost);
  EXPECT_EQ(cost.readout_row, 0.2);
  EXPECT_EQ(cost.prelude_row, 0.05);
  EXPECT_EQ(cost.recurrence[2], StepCost::kRows[2] * 1.0);
  EXPECT_EQ(cost.recurrence[3], Costs().recurrence[3]);
}

// Whatever else ran only ever added to a time.
TEST(StepCost, TheFastestOfTwoMeasurements) {
  StepCost one = Costs(), other = Costs();
  one.recurrence[2] = 5;
  other.recurrence[4] = 9;
  other.readout = one.readout = 0.3;
  one.readout = 0.2;
  const StepCost best = Fastest(one, other);
  EXPECT_EQ(best.recurrence, Costs().recurrence);
  EXPECT_EQ(best.readout, 0.2);
}

TEST(StepCost, IsKeptWithItsOrigin) {
  StepCostOrigin origin = {"2026-11-18", "cpu",     "Some Chip",           2,
                           1.04,         "BF16 h4", "loops:int8*8,last@64"};
  EXPECT_TRUE(origin.steady());
  const std::string text = StepCostText(Costs(), origin);
  for (const char* part : {"2026-11-18", "Some Chip", "\"threads\": 2", "\"spread\": 1.04",
                           "\"kv_type\": \"loops:int8*8,last@64\""})
    EXPECT_NE(text.find(part), std::string::npos) << part;
  ASSERT_TRUE(ParseStepCost(text).has_value());
  EXPECT_EQ(ParseStepCost(text)->recurrence, Costs().recurrence);
  origin.spread = 1.3;
  EXPECT_FALSE(origin.steady());
}

// A machine that is always busy is not measured at every start, only once in an hour. This backend
// cannot be measured: it knows the rows that it was told of.
TEST(StepCost, WhatABusyMachineGaveHoldsForAnHour) {
  const TemporaryFolder folder;
  setenv("XDG_CACHE_HOME", folder.path().c_str(), 1);
  FakeModel model(5, FakeShape::kNear, 4);
  FakeBackend backend(model, {1, 2}, 16, 64);
  SaveStepCost(backend, Costs(), 2 * kSteadySpread);
  EXPECT_EQ(LoadStepCost(backend).recurrence, Costs().recurrence);
  unsetenv("XDG_CACHE_HOME");
}

// Costs of a moment when many rows looked dear: real steps speak against them, in time.
TEST(StepCostTracker, SaysWhenStepsDisagree) {
  StepCostTracker tracker(Costs());
  for (int i = 0; i < 400; ++i) {
    tracker.Observe(1, 1, 0, 1.0);
    tracker.Observe(8, 8, 0, 3.0);
    if (i < 200) {
      EXPECT_FALSE(tracker.Disagrees());
    }
  }
  EXPECT_TRUE(tracker.Disagrees());
  StepCostTracker steady(Costs());
  for (int i = 0; i < 2000; ++i) {
    steady.Observe(1, 1, 0, 4.0);  // a slow machine is no other proportion
    steady.Observe(8, 8, 0, 6.0);
  }
  EXPECT_FALSE(steady.Disagrees());
}

TEST(StepCostTracker, ASlowMachineChangesNoProportion) {
  StepCostTracker tracker(Costs());
  for (int i = 0; i < 1000; ++i) tracker.Observe(1, 1, 0, 50.0);
  EXPECT_EQ(tracker.cost().recurrence, Costs().recurrence);
  for (int i = 0; i < 10000; ++i) tracker.Observe(1, 1, 0, 1e-4);
  EXPECT_NEAR(tracker.cost().Recurrence(8) / tracker.cost().Recurrence(1), 1.5, 0.01);
}

TEST(StepCostTracker, RowsThatCostMoreThanMeasuredAreFollowed) {
  StepCostTracker tracker(Costs());
  for (int i = 0; i < 1000; ++i) {
    tracker.Observe(1, 1, 0, 1.0);
    tracker.Observe(8, 8, 0, 2.25);
  }
  const double proportion = tracker.cost().Recurrence(8) / tracker.cost().Recurrence(1);
  EXPECT_GT(proportion, 2.0);
  EXPECT_LT(proportion, 2.5);
}

TEST(StepCostTracker, FreeRowsStayFree) {
  StepCostTracker tracker(StepCost{});
  for (int i = 0; i < 100; ++i) tracker.Observe(1 + i % 8, 1, 0, 1e-3 * (1 + i % 8));
  EXPECT_EQ(tracker.cost().recurrence, StepCost{}.recurrence);
}

TEST(StepCostTracker, FewerRowsNeverCostMore) {
  StepCostTracker tracker(Costs());
  for (int i = 0; i < 200; ++i) {
    tracker.Observe(2, 2, 0, 3.0);
    tracker.Observe(16, 16, 0, 0.1);
  }
  for (size_t i = 1; i < StepCost::kRows.size(); ++i) {
    EXPECT_LE(tracker.cost().recurrence[i - 1], tracker.cost().recurrence[i]) << i;
  }
}

}  // namespace
}  // namespace loopspec

#include "engine/load/step_cost.h"

#include <gtest/gtest.h>

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

#include "decode/row_choice.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace loopspec {
namespace {

constexpr int kRecurrence = 8;

// One request's chain of branches, each less likely than the one before by `rate`.
void AddChain(int32_t sequence, int length, double rate, std::vector<RowState>& rows) {
  double reach = 1.0;
  for (int i = 0; i < length; ++i, reach *= rate)
    rows.push_back({sequence, kRecurrence - 1 - i, 100, reach, false});
}

int Taken(std::span<const RowState> rows, int limit, const StepCost& cost) {
  RowChooser chooser(kRecurrence, 3, static_cast<int>(rows.size()));
  std::vector<char> advance;
  chooser.Choose(rows, limit, cost, advance);
  return static_cast<int>(std::count(advance.begin(), advance.end(), 1));
}

// Every row costs as much as the first.
StepCost NothingIsShared() {
  StepCost cost;
  for (size_t i = 0; i < cost.recurrence.size(); ++i) cost.recurrence[i] = StepCost::kRows[i];
  return cost;
}

// A step costs a fixed part and a tenth of it for every row.
StepCost MostIsShared() {
  StepCost cost;
  for (size_t i = 0; i < cost.recurrence.size(); ++i)
    cost.recurrence[i] = 1.0 + 0.1 * StepCost::kRows[i];
  return cost;
}

TEST(RowChooser, TakesAllRowsThatAreFree) {
  std::vector<RowState> rows;
  AddChain(0, 8, 0.5, rows);
  EXPECT_EQ(Taken(rows, 256, StepCost{}), 8);
  EXPECT_EQ(Taken(rows, 3, StepCost{}), 3);
}

TEST(RowChooser, DoesNotSpeculateWhereNothingIsShared) {
  std::vector<RowState> rows;
  AddChain(0, 8, 0.9, rows);
  EXPECT_EQ(Taken(rows, 256, NothingIsShared()), 1);
}

// The best prefix of the chain by useful rows per second, found by trying all.
TEST(RowChooser, TakesTheMostUsefulRowsPerSecond) {
  for (const double rate : {0.3, 0.6, 0.8, 0.95}) {
    std::vector<RowState> rows;
    AddChain(0, 8, rate, rows);
    int best = 0;
    double most = 0, useful = 0;
    for (int n = 1; n <= 8; ++n) {
      useful += rows[static_cast<size_t>(n) - 1].reach;
      const double per_second = useful / MostIsShared().Recurrence(n);
      if (per_second <= most) continue;
      most = per_second;
      best = n;
    }
    EXPECT_EQ(Taken(rows, 256, MostIsShared()), best) << rate;
  }
}

TEST(RowChooser, SpeculationFadesAsRequestsCome) {
  int before = 8;
  for (const int requests : {1, 2, 4, 8, 32, 128}) {
    std::vector<RowState> rows;
    for (int i = 0; i < requests; ++i) AddChain(i, 8, 0.8, rows);
    const int taken = Taken(rows, 256, MostIsShared());
    EXPECT_GE(taken, requests);  // every request's likeliest row
    EXPECT_LE(taken, before * requests);
    before = taken / requests;
  }
  EXPECT_EQ(before, 1);
}

TEST(RowChooser, RowsThatWaitForTheirGroupStay) {
  std::vector<RowState> rows;
  AddChain(0, 4, 0.9, rows);
  rows[0].held = rows[1].held = true;
  RowChooser chooser(kRecurrence, 3, 4);
  std::vector<char> advance;
  chooser.Choose(rows, 256, StepCost{}, advance);
  EXPECT_EQ(advance, (std::vector<char>{0, 0, 1, 1}));
}

// A group passes a depth on one plane; the front reads another, and is not left out for that.
TEST(RowChooser, TheFrontDraftsWhileAGroupPasses) {
  StepCost cost;
  cost.plane_position = 0.005;  // half as much as the rest of a step at 100 positions
  std::vector<RowState> rows(6, RowState{0, 5, 100, 0.95, false});
  rows[0].reach = 1.0;
  rows.push_back({0, 0, 100, 0.6, false});
  EXPECT_EQ(Taken(rows, 256, cost), 7);
}

// Rows of one request at one depth read its keys once.
TEST(RowChooser, SharedPlanesAreReadOnce) {
  StepCost cost;
  cost.plane_position = 0.01;  // as much as the rest of a step at 100 positions
  const std::vector<RowState> apart = {{0, 5, 100, 1.0, false}, {0, 4, 100, 0.4, false}};
  const std::vector<RowState> together = {{0, 5, 100, 1.0, false}, {0, 5, 100, 0.4, false}};
  EXPECT_EQ(Taken(apart, 256, cost), 1);
  EXPECT_EQ(Taken(together, 256, cost), 2);
}

}  // namespace
}  // namespace loopspec

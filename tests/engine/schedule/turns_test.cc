// How tenants divide the decoder: a view of the sequences in, turns and cells out.
#include "engine/schedule/turns.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace loopspec {
namespace {

// Every row costs as much as every other.
StepCost RowsCostTheSame() {
  StepCost cost;
  for (size_t i = 0; i < cost.recurrence.size(); ++i) cost.recurrence[i] = StepCost::kRows[i];
  return cost;
}

// Up to 32 rows cost what one does, as on a device that waits for its weights.
StepCost RowsAreCheap() {
  StepCost cost;
  cost.recurrence = {1, 1, 1, 1, 1.01, 1.02, 2, 4, 8};
  return cost;
}

std::vector<TurnView> Answers(std::vector<int> count_by_tenant) {
  std::vector<TurnView> views;
  for (int tenant = 0; tenant < std::ssize(count_by_tenant); ++tenant) {
    for (int i = 0; i < count_by_tenant[static_cast<size_t>(tenant)]; ++i)
      views.push_back({.tenant = tenant});
  }
  return views;
}

std::vector<Turn> Turns(const std::vector<TurnView>& views, const std::vector<TenantView>& tenants,
                        const StepCost& cost) {
  TurnSchedule schedule;
  schedule.sequences = views;
  ScheduleTurns(tenants, cost, schedule);
  return schedule.turns;
}

// Turns that are due and lent, by tenant.
struct Given {
  std::vector<int> due, lent;
  bool operator==(const Given&) const = default;
};
Given Count(const std::vector<TurnView>& views, const std::vector<TenantView>& tenants,
            const StepCost& cost) {
  Given given{std::vector<int>(tenants.size()), std::vector<int>(tenants.size())};
  const std::vector<Turn> turns = Turns(views, tenants, cost);
  for (size_t i = 0; i < views.size(); ++i) {
    const auto tenant = static_cast<size_t>(views[i].tenant);
    given.due[tenant] += turns[i] == Turn::kDue ? 1 : 0;
    given.lent[tenant] += turns[i] == Turn::kLent ? 1 : 0;
  }
  return given;
}

TEST(Turns, AStepIsFilledFromTheTenantThatGotLeast) {
  struct Case {
    const char* what;
    std::vector<int> answers;  // by tenant
    std::vector<TenantView> tenants;
    std::vector<int> due;
  };
  const TenantView heavy{.weight = 4}, rich{.decoded = 10};
  for (const Case& c : {
           Case{"one tenant has every step", {5}, {{}}, {5}},
           Case{"one answer beside many shares its steps with one", {1, 64}, {{}, {}}, {1, 1}},
           Case{"all take part where both have as many", {8, 8}, {{}, {}}, {8, 8}},
           Case{"the smaller crowd decides", {8, 64}, {{}, {}}, {8, 8}},
           Case{"by weight", {64, 8}, {{}, heavy}, {2, 8}},
           Case{"who got less comes alone until it has caught up", {4, 64}, {{}, rich}, {4, 0}},
           Case{"and gets more where it can use it", {64, 4}, {{}, rich}, {14, 4}},
           Case{"a tenant that decodes nothing is not waited for", {0, 64}, {{}, {}}, {0, 64}},
           Case{"three tenants", {1, 64, 64}, {{}, {}, {}}, {1, 1, 1}},
       }) {
    EXPECT_EQ(Count(Answers(c.answers), c.tenants, RowsCostTheSame()).due, c.due) << c.what;
  }
}

TEST(Turns, RowsThatCostNextToNothingAreLent) {
  const std::vector<TenantView> two(2), heavy = {{}, {.weight = 4}};
  EXPECT_EQ(Count(Answers({1, 64}), two, RowsAreCheap()), (Given{{1, 1}, {0, 32}}));
  // 9 and 36 rows are due; every further row would cost as much as those.
  EXPECT_EQ(Count(Answers({36, 36}), heavy, RowsCostTheSame()), (Given{{9, 36}, {0, 0}}));
  // Where rows are free, nobody waits.
  EXPECT_EQ(Count(Answers({1, 64}), two, StepCost{}), (Given{{1, 1}, {0, 63}}));
  // The drafts of one answer may need the rows that would be cheap.
  std::vector<TurnView> drafting = Answers({1, 64});
  drafting[0].rows = 30;
  EXPECT_EQ(Count(drafting, two, RowsAreCheap()), (Given{{1, 1}, {0, 1}}));
}

TEST(Turns, WithinATenantAllTakeTurns) {
  const std::vector<TenantView> two(2);
  std::vector<TurnView> views = Answers({1, 3});
  views[1].last = 7;
  views[2].last = 5;  // got its last token first
  views[3].last = 6;
  const Turn due = Turn::kDue, waits = Turn::kWaits;
  EXPECT_EQ(Turns(views, two, RowsCostTheSame()), (std::vector{due, waits, due, waits}));
  views[3].priority = -1;  // comes before the others of its tenant
  EXPECT_EQ(Turns(views, two, RowsCostTheSame()), (std::vector{due, waits, waits, due}));
  views[3].last = 0;  // has no token yet
  views[3].priority = 0;
  EXPECT_EQ(Turns(views, two, RowsCostTheSame()), (std::vector{due, waits, waits, due}));
}

// Long runs: every answer that takes part gets `pace` tokens of its tenant.
std::vector<double> InTheLongRun(std::vector<TenantView> tenants, const std::vector<int>& answers,
                                 const std::vector<double>& pace, int steps) {
  TurnSchedule schedule;
  schedule.sequences = Answers(answers);
  std::vector<TurnView>& views = schedule.sequences;
  std::vector<double> tokens(tenants.size()), under_way(views.size());
  for (int step = 1; step <= steps; ++step) {
    ScheduleTurns(tenants, RowsCostTheSame(), schedule);
    for (size_t i = 0; i < views.size(); ++i) {
      if (schedule.turns[i] == Turn::kWaits) continue;
      const auto tenant = static_cast<size_t>(views[i].tenant);
      under_way[i] += pace[tenant];
      const int whole = static_cast<int>(under_way[i]);
      if (whole == 0) continue;
      under_way[i] -= whole;
      views[i].last = step;
      tokens[tenant] += whole;
      tenants[tenant].decoded += whole / tenants[tenant].weight;
    }
  }
  return tokens;
}

// Whatever a turn gives: a quarter of a token, a token, or several where drafts hold.
TEST(Turns, TokensAreDividedByWeightInTheLongRun) {
  for (const double mine : {0.25, 1.0, 2.5}) {
    for (const double others : {0.25, 1.0, 2.5}) {
      for (const double weight : {1.0, 3.0, 0.1}) {
        const std::vector<double> tokens =
            InTheLongRun({{}, {.weight = weight}}, {8, 64}, {mine, others}, 4000);
        EXPECT_NEAR(tokens[1] / tokens[0] / weight, 1, 0.02)
            << mine << " " << others << " " << weight;
      }
    }
  }
}

TEST(Turns, ATokenAtALongContextCountsForMore) {
  StepCost cost = RowsCostTheSame();
  EXPECT_EQ(TokenCharge(cost, 1000), 1);
  cost.row_position = 0.001;  // attention to 1,000 positions costs as much as a row
  EXPECT_EQ(TokenCharge(cost, 3000), 1);
  EXPECT_DOUBLE_EQ(TokenCharge(cost, 7000), 2);
  std::vector<TurnView> views = Answers({4, 64});
  for (TurnView& view : views) view.context = view.tenant == 0 ? 7000 : 0;
  EXPECT_EQ(Count(views, std::vector<TenantView>(2), cost).due, (std::vector{4, 8}));
}

std::vector<int> Cells(const std::vector<int>& answers, const std::vector<TenantView>& tenants,
                       int cells, bool alone = false) {
  std::vector<int> tenant_of, shares, by_tenant(tenants.size());
  for (const TurnView& view : Answers(answers)) tenant_of.push_back(view.tenant);
  ShareCells(tenant_of, tenants, cells, alone, shares);
  EXPECT_LE(std::accumulate(shares.begin(), shares.end(), 0), cells);
  for (size_t i = 0; i < shares.size(); ++i)
    by_tenant[static_cast<size_t>(tenant_of[i])] = shares[i];
  return by_tenant;
}

TEST(Cells, AreDividedByWeight) {
  const std::vector<TenantView> one(1), two(2), heavy = {{}, {.weight = 3}};
  EXPECT_EQ(Cells({1}, one, 256, true), std::vector{256});  // nobody else can come
  EXPECT_EQ(Cells({8}, one, 256), std::vector{31});         // one less for those that come next
  EXPECT_EQ(Cells({128}, one, 256), std::vector{1});
  EXPECT_EQ(Cells({2, 2}, two, 256), (std::vector{63, 63}));
  // One answer has as many as it can use, the others the rest.
  EXPECT_EQ(Cells({1, 64}, two, 256), (std::vector{kCellsUsed, 2}));
  EXPECT_EQ(Cells({8, 8}, heavy, 128), (std::vector{4, 10}));
  // Sums of fractions may be a rounding below what they stand for.
  Cells({1, 3, 1}, {{.weight = 0.1}, {.weight = 0.3}, {.weight = 0.1}}, 165);
  // Everybody has one, whatever its weight.
  EXPECT_EQ(Cells({32, 32}, {{}, {.weight = 1000}}, 256), (std::vector{1, 4}));
}

}  // namespace
}  // namespace loopspec

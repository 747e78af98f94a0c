// When drafts are worth their readouts.
#include "decode/load_choice.h"

#include <gtest/gtest.h>

#include <vector>

namespace loopspec {
namespace {

LoadQuestion Ouro(int sequences) {
  LoadQuestion question;
  question.sequences = sequences;
  question.recurrence = 4;
  question.first_depth = 1;
  question.second_depth = 2;
  question.proposals = 2;
  question.most_rows = 256;
  return question;
}

TEST(LoadChoice, FreeRowsAreWorthDrafts) {
  const StepCost free;
  for (const int sequences : {1, 2, 8, 32}) {
    // A token in 0.9 * 1 + 0.075 * 2 + 0.025 * 4 recurrences instead of 4.
    EXPECT_NEAR(DraftingRate(Ouro(sequences), free) / PlainRate(Ouro(sequences), free), 4 / 1.15,
                1e-6);
  }
}

TEST(LoadChoice, RowsThatCostAsMuchAsTheFirstAreNot) {
  StepCost linear;
  for (size_t i = 0; i < linear.recurrence.size(); ++i) linear.recurrence[i] = StepCost::kRows[i];
  linear.readout_row = 0.3;
  for (const int sequences : {1, 2, 8, 32}) {
    EXPECT_LT(DraftingRate(Ouro(sequences), linear), PlainRate(Ouro(sequences), linear));
  }
}

TEST(LoadChoice, FadesWhereTheDeviceIsFull) {
  StepCost cost;  // eight rows for the price of one
  cost.recurrence = {1, 1, 1, 1, 2, 4, 8, 16, 32};
  cost.readout = 0.1;
  cost.readout_row = 0.02;
  EXPECT_GT(DraftingRate(Ouro(1), cost), 2.0 * PlainRate(Ouro(1), cost));
  EXPECT_GT(DraftingRate(Ouro(2), cost), 1.5 * PlainRate(Ouro(2), cost));
  EXPECT_LT(DraftingRate(Ouro(8), cost), PlainRate(Ouro(8), cost));
  EXPECT_LT(DraftingRate(Ouro(32), cost), PlainRate(Ouro(32), cost));
}

TEST(LoadChoice, BadDraftsAreNotWorthMaking) {
  StepCost cost;
  cost.recurrence = {1, 1.1, 1.3, 1.6, 2.5, 4.5, 8.5, 16.5, 32.5};
  cost.readout = 0.3;
  LoadQuestion question = Ouro(4);
  EXPECT_GT(DraftingRate(question, cost), PlainRate(question, cost));
  question.first = question.second = 0;
  EXPECT_LT(DraftingRate(question, cost), PlainRate(question, cost));
}

// Eight rows cost little more than one, every further one as much as those.
StepCost RowsCost() {
  StepCost cost;
  cost.recurrence = {1, 1, 1, 1, 2, 4, 8, 16, 32};
  cost.readout = 0.1;
  cost.readout_row = 0.02;
  return cost;
}

constexpr int kDepths[] = {1, 2};
constexpr RequestLoad kDrafts = {kDepths, 0.9, 0.075, 100};
constexpr RequestLoad kPlain = {{}, 0, 0, 100};

bool Gain(const std::vector<RequestLoad>& requests, bool drafting = true) {
  return DraftsGain(requests, 4, 64, drafting, RowsCost());
}

TEST(LoadChoice, DraftsAreLeftOutWhereTheyGainNothing) {
  EXPECT_TRUE(Gain({kDrafts}));
  EXPECT_TRUE(Gain({kDrafts, kDrafts}));
  // The device is full with a row each.
  std::vector<RequestLoad> many(32, kDrafts);
  EXPECT_FALSE(Gain(many));
  // Drafts that never hold gain nothing for two either.
  RequestLoad poor = kDrafts;
  poor.first = poor.second = 0;
  EXPECT_FALSE(Gain({poor, poor}));
  // Where nobody drafts there is nothing to leave out.
  EXPECT_TRUE(Gain(std::vector<RequestLoad>(32, kPlain)));
  many.back() = kPlain;
  EXPECT_FALSE(Gain(many));
}

// Between the load at which drafts are dropped and the one at which they are taken up again lies
// one at which both stay as they are.
TEST(LoadChoice, DoesNotGoBackAndForth) {
  bool undecided = false;
  for (double share = 0; share <= 1; share += 0.002) {
    RequestLoad load = kDrafts;
    load.first = share;
    load.second = 0;
    const std::vector<RequestLoad> four(4, load);
    const bool stays = Gain(four, true), returns = Gain(four, false);
    EXPECT_TRUE(stays || !returns) << share;
    undecided = undecided || (stays && !returns);
  }
  EXPECT_TRUE(undecided);
}

}  // namespace
}  // namespace loopspec

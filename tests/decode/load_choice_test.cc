// When drafts are worth their readouts.
#include "decode/load_choice.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace loopspec

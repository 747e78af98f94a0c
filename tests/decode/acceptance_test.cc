// What is believed of drafts and guesses: the prior at first, then what verification says, and soon
// what it says now. No token depends on it, so a poor estimate is seen here alone.
#include "decode/acceptance.h"

#include <gtest/gtest.h>

namespace loopspec {
namespace {

constexpr uint32_t kFirst = 1, kBoth = 3;  // which depths left a draft

TEST(AcceptanceRates, BeginWithThePrior) {
  const AcceptanceRates rates(2, {{0.8, 0.15}, 0.3});
  EXPECT_NEAR(rates.Share(0), 0.8, 1e-9);
  EXPECT_NEAR(rates.Share(1), 0.15, 1e-9);
  EXPECT_NEAR(rates.Share(2), 0.05, 1e-9);  // the fallback
  // Later proposals that the prior does not name: a seventh of the one before.
  const AcceptanceRates three(3, {{0.7, 0.14}, 0.3});
  EXPECT_NEAR(three.Share(2), 0.02, 1e-9);
  // Rates that leave nothing over are cut.
  const AcceptanceRates greedy(2, {{1.0, 0.5}, 0.3});
  EXPECT_LT(greedy.Share(0) + greedy.Share(1), 1.0);
}

// A second draft where the gate let one through is a sign against the first.
TEST(AcceptanceRates, TakeTheGateIntoAccount) {
  const AcceptanceRates rates(2, {{0.8, 0.15}, 0.3});
  const double before = rates.Of(1, kFirst, 0);
  EXPECT_NEAR(before, 0.8, 1e-9);
  EXPECT_GT(rates.Of(2, kFirst, 0), before);  // the gate stayed closed
  EXPECT_LT(rates.Of(2, kBoth, 0), before);
  EXPECT_GT(rates.Of(2, kBoth, 1), rates.Share(1));
  EXPECT_LT(rates.Of(2, kBoth, 0) + rates.Of(2, kBoth, 1), 1.0);
}

TEST(AcceptanceRates, LearnFromVerdicts) {
  AcceptanceRates rates(2);
  EXPECT_NEAR(rates.Share(0), 0.9, 1e-9);
  for (int i = 0; i < 60; ++i) rates.Observe(kFirst, -1);
  EXPECT_LT(rates.Share(0), 0.25);
  EXPECT_GT(rates.Share(2), 0.7);
  EXPECT_LT(rates.Of(1, kFirst, 0), 0.25);
  EXPECT_LT(rates.Of(2, kFirst, 0), 0.25);
  // Nothing was seen of branches with both drafts, so what is believed of them past the second
  // depth is as at first.
  EXPECT_DOUBLE_EQ(rates.Of(2, kBoth, 1), AcceptanceRates(2).Of(2, kBoth, 1));
}

// Texts change: an average over all that was ever seen would still say 0.77.
TEST(AcceptanceRates, FollowTheText) {
  AcceptanceRates rates(1);
  for (int i = 0; i < 1000; ++i) rates.Observe(kFirst, 0);
  EXPECT_GT(rates.Share(0), 0.98);
  for (int i = 0; i < 300; ++i) rates.Observe(kFirst, -1);
  EXPECT_LT(rates.Share(0), 0.3);
  for (int i = 0; i < 300; ++i) rates.Observe(kFirst, 0);
  EXPECT_GT(rates.Share(0), 0.7);
}

// One verdict is no reason to change course.
TEST(AcceptanceRates, AreNotUpsetByOneVerdict) {
  AcceptanceRates rates(1);
  rates.Observe(kFirst, -1);
  EXPECT_GT(rates.Share(0), 0.8);
}

TEST(GuessRates, LongerMatchesAreTrustedMore) {
  const GuessRates rates;
  for (int match = 2; match <= GuessRates::kLongestMatch; ++match)
    EXPECT_GE(rates.Of(match), rates.Of(match - 1)) << match;
  EXPECT_LT(rates.Of(1), 0.5);
  EXPECT_GT(rates.Of(GuessRates::kLongestMatch), 0.5);
}

TEST(GuessRates, LearnForEachLengthByItself) {
  GuessRates rates;
  const double other = rates.Of(3);
  for (int i = 0; i < 30; ++i) rates.Observe(2, true);
  EXPECT_GT(rates.Of(2), 0.85);
  EXPECT_DOUBLE_EQ(rates.Of(3), other);
  for (int i = 0; i < 300; ++i) rates.Observe(2, false);
  EXPECT_LT(rates.Of(2), 0.1);
}

}  // namespace
}  // namespace loopspec

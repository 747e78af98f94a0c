// What a calibration chooses, and what it says of Theorem 1.
#include <gtest/gtest.h>

#include "calibrate/calibration_run.h"

namespace loopspec {
namespace {

CalibrationReport Report() {
  CalibrationReport report;
  const auto predict = [](std::vector<int> depths, double rate) {
    Prediction p;
    p.depths = std::move(depths);
    p.tokens_per_second = rate;
    return p;
  };
  report.autoregressive = predict({}, 100);
  report.predictions = {predict({4, 8}, 300), predict({8}, 295), predict({2, 8}, 200)};
  return report;
}

TEST(CalibrationChoice, PredictionsDecideWhereNothingWasMeasured) {
  CalibrationReport report = Report();
  EXPECT_EQ(ChooseFastest(report), (std::vector<int>{8}));  // within 3 %, with fewer proposals
  report.predictions[1].tokens_per_second = 250;
  EXPECT_EQ(ChooseFastest(report), (std::vector<int>{4, 8}));
}

TEST(CalibrationChoice, MeasuredSpeedsDecideOverPredictions) {
  CalibrationReport report = Report();
  report.measured = {{{}, {100}}, {{4, 8}, {150, 160, 155}}, {{2, 8}, {190, 210, 200}}};
  EXPECT_EQ(ChooseFastest(report), (std::vector<int>{2, 8}));
}

// Noise matters where it could have made the choice, and nowhere else.
TEST(CalibrationChoice, IsSettledWhenNoiseCannotChangeIt) {
  const std::vector<int> best = {2, 8};
  // The machine was 1.3 times as slow in one round as in another, for all sets alike.
  EXPECT_TRUE(ChoiceIsSettled(
      {{{}, {100, 130, 104}}, {{4, 8}, {150, 196, 155}}, {best, {200, 262, 208}}}, best));
  // Another set was faster in one round and slower in the next: nobody knows.
  EXPECT_FALSE(ChoiceIsSettled({{{4, 8}, {150, 240, 170}}, {best, {200, 190, 205}}}, best));
  // As good within a few percent, again and again: either will do.
  EXPECT_TRUE(ChoiceIsSettled(
      {{{4, 8}, {200, 204, 199, 203, 201}}, {best, {203, 200, 202, 200, 203}}}, best));
  // One round says nothing of noise.
  EXPECT_FALSE(ChoiceIsSettled({{{}, {100}}, {best, {200}}}, best));
  EXPECT_TRUE(ChoiceIsSettled({{best, {200}}}, best));
}

TEST(CalibrationChoice, TheSpreadDecidesWhereNothingWasTimed) {
  CalibrationReport report = Report();
  report.spread = 1.3;
  EXPECT_TRUE(report.busy());
  report.measured = {{{}, {100, 100}}};
  EXPECT_FALSE(report.busy());
  report.settled = false;
  EXPECT_TRUE(report.busy());
}

// Where drafts do not pay on this machine none are made.
TEST(CalibrationChoice, AutoregressiveDecodingMayBeTheFastest) {
  CalibrationReport report = Report();
  report.measured = {{{}, {240}}, {{4, 8}, {150}}, {{2, 8}, {200}}};
  EXPECT_EQ(ChooseFastest(report), std::vector<int>{});
  report.chosen_depths = ChooseFastest(report);
  EXPECT_EQ(report.chosen().tokens_per_second, 100);
}

TEST(CalibrationChoice, RestartsStandBesideTwiceTheDistanceOfTheSecondDepth) {
  DepthProfile profile;
  profile.recurrence = 4;
  profile.generated.distance = {0.3, 0.1, 0.02, 0};
  profile.sampled = {{{1}, {0.7}, {}}, {{1, 2}, {0.7, 0.2}, {0.4}}, {{2, 3}, {0.9, 0.08}, {0.2}}};
  const std::vector<RestartBound> bounds = RestartBounds(profile);
  ASSERT_EQ(bounds.size(), 2u);
  EXPECT_NEAR(bounds[0].restarts, 0.1, 1e-12);
  EXPECT_NEAR(bounds[0].bound, 0.2, 1e-12);
  EXPECT_NEAR(bounds[1].restarts, 0.02, 1e-12);
  EXPECT_NEAR(bounds[1].bound, 0.04, 1e-12);
}

// The envelope is of what the model wrote; prompts are another text.
TEST(CalibrationChoice, TheEnvelopeIsOfGeneratedPositions) {
  DepthProfile profile;
  profile.recurrence = 4;
  profile.generated = {10, {}, {0.4, 0.2, 0.1, 0}};
  profile.prompts = {10, {}, {0.9, 0.9, 0.9, 0}};
  std::string why;
  const auto envelope = FitProfile(profile, &why);
  ASSERT_TRUE(envelope.has_value()) << why;
  EXPECT_LE(envelope->At(1), 0.5);
  EXPECT_EQ(profile.zeros(), 0);
  profile.generated.distance[2] = 0;
  EXPECT_EQ(profile.zeros(), 1);
}

}  // namespace
}  // namespace loopspec

#include "calibrate/envelope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "base/error.h"

namespace loopspec {
namespace {

std::vector<DepthDistance> PowerLaw(double alpha, double beta, int depths) {
  std::vector<DepthDistance> points;
  for (int r = 1; r <= depths; ++r) points.push_back({r, beta * std::pow(r, -alpha)});
  return points;
}

double WorstRatio(const std::vector<DepthDistance>& points, double alpha, double beta) {
  double worst = 0;
  for (const DepthDistance& p : points) {
    worst = std::max(worst, beta * std::pow(p.depth, -alpha) / p.distance);
  }
  return worst;
}

TEST(Envelope, RecoversAPowerLaw) {
  for (const double alpha : {0.3, 1.03, 1.08, 2.5}) {
    for (const double beta : {0.05, 0.175, 0.207, 0.9}) {
      const PowerLawEnvelope fit = FitEnvelope(PowerLaw(alpha, beta, 31));
      EXPECT_NEAR(fit.alpha, alpha, 1e-9);
      EXPECT_NEAR(fit.beta, beta, 1e-9);
      EXPECT_NEAR(fit.worst_ratio, 1.0, 1e-9);
    }
  }
}

// No other slope gives a smaller largest ratio: against a fine search over slopes.
TEST(Envelope, IsTheSmallestAmongAllPowerLaws) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> noise(0.5, 1.0);
  for (int round = 0; round < 50; ++round) {
    std::vector<DepthDistance> points = PowerLaw(1.0, 0.4, 20);
    // Two benchmarks, so two distances at each depth.
    const auto second = points;
    points.insert(points.end(), second.begin(), second.end());
    for (DepthDistance& p : points) p.distance *= noise(random);
    const PowerLawEnvelope fit = FitEnvelope(points);
    for (const DepthDistance& p : points) {
      EXPECT_GE(fit.At(p.depth), p.distance * (1 - 1e-12));
    }
    EXPECT_NEAR(WorstRatio(points, fit.alpha, fit.beta), fit.worst_ratio, 1e-9);
    for (double alpha = 0.0; alpha < 3.0; alpha += 0.001) {
      double beta = 0;
      for (const DepthDistance& p : points) {
        beta = std::max(beta, p.distance * std::pow(p.depth, alpha));
      }
      EXPECT_GE(WorstRatio(points, alpha, beta), fit.worst_ratio - 1e-9);
    }
  }
}

TEST(Envelope, LeavesOutDistancesOfZero) {
  std::vector<DepthDistance> points = PowerLaw(1.0, 0.2, 4);
  points.push_back({5, 0.0});
  EXPECT_NEAR(FitEnvelope(points).alpha, 1.0, 1e-9);
}

TEST(Envelope, RefusesWhatHasNoPowerLaw) {
  EXPECT_THROW(FitEnvelope({}), Error);
  const std::vector<DepthDistance> one = {{3, 0.1}, {3, 0.2}};
  EXPECT_THROW(FitEnvelope(one), Error);
  const std::vector<DepthDistance> rising = {{1, 0.1}, {2, 0.2}, {4, 0.4}};
  EXPECT_THROW(FitEnvelope(rising), Error);
  const std::vector<DepthDistance> bad_depth = {{0, 0.1}, {2, 0.05}};
  EXPECT_THROW(FitEnvelope(bad_depth), Error);
  const std::vector<DepthDistance> bad_distance = {{1, 1.5}, {2, 0.05}};
  EXPECT_THROW(FitEnvelope(bad_distance), Error);
}

// The paper's own figures: alpha, beta and R give the depths that it states.
TEST(OptimalDepths, AreThePapers) {
  const DepthChoice llama = ChooseDepths({1.03, 0.175, 1}, 32);
  EXPECT_NEAR(llama.depths.d1, 1.26, 0.005);
  EXPECT_NEAR(llama.depths.d2, 8.85, 0.005);
  EXPECT_TRUE(llama.condition_holds);
  const DepthChoice olmo = ChooseDepths({1.08, 0.207, 1}, 32);
  EXPECT_NEAR(olmo.depths.d1, 1.41, 0.005);
  EXPECT_NEAR(olmo.depths.d2, 9.17, 0.005);
  EXPECT_TRUE(olmo.condition_holds);
}

// The theorem's condition is exactly what keeps 1 <= d1 < d2 < R.
TEST(OptimalDepths, ConditionSaysWhetherTheDepthsAreInOrder) {
  int held = 0, broken = 0;
  for (double alpha = 0.2; alpha < 3; alpha += 0.13) {
    for (double beta = 0.01; beta < 1; beta += 0.07) {
      for (const int recurrence : {2, 4, 8, 32, 128}) {
        const DepthChoice choice = ChooseDepths({alpha, beta, 1}, recurrence);
        const auto [d1, d2] = choice.depths;
        const bool in_order = d1 > 1 && d1 < d2 && d2 < recurrence;
        EXPECT_EQ(choice.condition_holds, in_order)
            << alpha << " " << beta << " " << recurrence << ": " << d1 << ", " << d2;
        ++(in_order ? held : broken);
      }
    }
  }
  EXPECT_GT(held, 100);
  EXPECT_GT(broken, 100);
}

TEST(OptimalDepths, MinimiseTheBound) {
  const PowerLawEnvelope envelope{1.03, 0.175, 1};
  const auto [d1, d2] = ChooseDepths(envelope, 32).depths;
  const double least = StepBound(envelope, d1, d2, 32);
  for (double a = 0.5; a < 8; a += 0.1) {
    for (double b = a + 0.1; b < 32; b += 0.1) {
      EXPECT_GE(StepBound(envelope, a, b, 32), least - 1e-12);
    }
  }
}

TEST(RankCorrelation, KnowsOrderAndTies) {
  const std::vector<double> a = {1, 2, 3, 4, 5}, same = {10, 20, 21, 400, 401},
                            reversed = {5, 4, 3, 2, 1}, constant = {1, 1, 1, 1, 1};
  EXPECT_DOUBLE_EQ(*RankCorrelation(a, same), 1.0);
  EXPECT_DOUBLE_EQ(*RankCorrelation(a, reversed), -1.0);
  EXPECT_FALSE(RankCorrelation(a, constant));
  EXPECT_FALSE(RankCorrelation({}, {}));
  // Ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3.
  const std::vector<double> ties = {1, 2, 2, 3}, rising = {1, 2, 3, 4};
  EXPECT_NEAR(*RankCorrelation(ties, rising), 4.5 / std::sqrt(4.5 * 5.0), 1e-12);
}

TEST(Envelope, SaysWhereItMeansLittle) {
  EXPECT_FALSE(EnvelopeWarning({1.0, 0.5, 2.9}).has_value());
  EXPECT_NE(EnvelopeWarning({1.0, 1.5, 2.0})->find("beta is 1.50, above 1"), std::string::npos);
  EXPECT_NE(EnvelopeWarning({1.0, 0.5, 3.5})->find("up to 3.5 times a measured distance"),
            std::string::npos);
}

}  // namespace
}  // namespace loopspec

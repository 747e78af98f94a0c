// The judgement that cuda_cpu_test.cc relies on, with made-up errors: it lets alike runs pass and
// finds worse ones.
#include "rounding_verdict.h"

#include <gtest/gtest.h>

#include <random>

namespace loopspec {
namespace {

// Errors like those of raven-demo: 12 texts, 200 positions; every text has a level of its own that
// both runs share in part. `scale`: how much larger those of the tested run are.
RoundingErrors Errors(int seed, double scale) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::normal_distribution<double> normal;
  RoundingErrors errors;
  for (int text = 0; text < 12; ++text) {
    const double level = 0.4 * normal(random);
    for (auto* run : {&errors.tested, &errors.other}) {
      const double own = 0.1 * normal(random);
      std::vector<double> at;
      for (int i = 0; i < 200; ++i)
        at.push_back(0.017 * std::exp(level + own + 0.5 * normal(random)) *
                     (run == &errors.tested ? scale : 1.0));
      run->push_back(at);
    }
  }
  return errors;
}

TEST(RoundingVerdict, LetsAlikeRunsPass) {
  int worse = 0;
  for (int seed = 0; seed < 1000; ++seed) worse += JudgeRounding(Errors(seed, 1.0)).worse ? 1 : 0;
  EXPECT_LE(worse, 6);  // 2 expected of t and worst positions together; each is once in a thousand
}

TEST(RoundingVerdict, FindsAWorseRun) {
  int found = 0;
  for (int seed = 0; seed < 100; ++seed) found += JudgeRounding(Errors(seed, 1.4)).worse ? 1 : 0;
  EXPECT_GE(found, 95);
}

TEST(RoundingVerdict, FindsFlippedChoicesAndNaN) {
  RoundingErrors errors = Errors(1, 1.0);
  ASSERT_FALSE(JudgeRounding(errors).worse);
  errors.tested_flips = 1;  // the other run has none: it may happen
  EXPECT_FALSE(JudgeRounding(errors).worse);
  errors.tested_flips = 10;
  EXPECT_TRUE(JudgeRounding(errors).worse);
  errors.other_flips = 8;
  EXPECT_FALSE(JudgeRounding(errors).worse);
  errors.tested[3][5] = NAN;
  EXPECT_TRUE(JudgeRounding(errors).worse);
}

TEST(RoundingVerdict, ThrowsCoins) {
  EXPECT_NEAR(AtLeast(0, 5), 1.0, 1e-12);
  EXPECT_NEAR(AtLeast(5, 5), 1.0 / 32, 1e-12);
  EXPECT_NEAR(AtLeast(2, 3), 0.5, 1e-12);
  EXPECT_NEAR(AtLeast(0, 0), 1.0, 1e-12);
}

}  // namespace
}  // namespace loopspec

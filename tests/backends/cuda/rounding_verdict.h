// Whether one run in bf16 is further from float32 than another, independent one.
//
// Two correct runs in bf16 round alike but add in different orders, so their errors against float32
// have the same distribution. Neither is exact, and a clear choice may flip in either. What an
// error in the code does is make its run worse than the other. That is what is tested, with the
// errors of both runs at the same positions of the same texts. Positions of one text share keys and
// so share errors; texts are independent. So every statistic is over texts. Each of the three tests
// finds fault with a correct run once in a thousand times at most, and runs are deterministic.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace loopspec {

// Errors of two runs, the mean over the vocabulary at every position: [text][position].
struct RoundingErrors {
  std::vector<std::vector<double>> tested, other;
  int64_t tested_flips = 0, other_flips = 0;  // clear choices that differ from float32's
};

struct RoundingVerdict {
  double ratio = 1;     // of the errors, tested to other: geometric mean
  double t = 0;         // of its logarithm over the texts
  int worse_texts = 0;  // whose worst position is worse in the tested run
  double flips_p = 1;   // of so many of all flips in the tested run, if each were in either alike
  bool worse = false;
};

// The probability of at least `k` heads in `n` throws.
inline double AtLeast(int64_t k, int64_t n) {
  double sum = 0;
  for (int64_t i = k; i <= n; ++i) {
    sum += std::exp(
        std::lgamma(static_cast<double>(n) + 1) - std::lgamma(static_cast<double>(i) + 1) -
        std::lgamma(static_cast<double>(n - i) + 1) - static_cast<double>(n) * std::log(2.0));
  }
  return sum;
}

// For ten texts and more.
inline RoundingVerdict JudgeRounding(const RoundingErrors& errors) {
  constexpr double kOnceInAThousand = 1e-3;
  constexpr double kLimitT = 4.3;  // one-sided, once in a thousand at nine degrees of freedom
  RoundingVerdict verdict;
  const auto texts = static_cast<double>(errors.tested.size());
  double sum = 0, squares = 0;
  for (size_t text = 0; text < errors.tested.size(); ++text) {
    double log_ratio = 0, tested_worst = 0, other_worst = 0;
    for (size_t i = 0; i < errors.tested[text].size(); ++i) {
      const double a = errors.tested[text][i], b = errors.other[text][i];
      log_ratio += std::log(a / b);
      tested_worst = std::fmax(tested_worst, a);
      other_worst = std::fmax(other_worst, b);
    }
    log_ratio /= static_cast<double>(errors.tested[text].size());
    sum += log_ratio;
    squares += log_ratio * log_ratio;
    if (!(tested_worst <= other_worst)) ++verdict.worse_texts;
  }
  const double mean = sum / texts;
  const double variance = (squares - texts * mean * mean) / (texts - 1);
  verdict.ratio = std::exp(mean);
  verdict.t = mean / std::sqrt(std::fmax(variance, 1e-12) / texts);
  verdict.flips_p = AtLeast(errors.tested_flips, errors.tested_flips + errors.other_flips);
  // Written so that a run with NaNs is worse.
  verdict.worse = !(verdict.t <= kLimitT) || !(verdict.flips_p >= kOnceInAThousand) ||
                  AtLeast(verdict.worse_texts, static_cast<int64_t>(texts)) < kOnceInAThousand;
  return verdict;
}

}  // namespace loopspec

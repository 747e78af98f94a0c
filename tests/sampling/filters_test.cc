// Filters against a brute-force reference in double, penalties, the coupled sampler's noise and its
// distribution.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "sampling/exp.h"
#include "sampling/filters.h"
#include "sampling/team.h"

namespace loopspec {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// The definition, word for word. `close` is set when a cut is so near to a token that rounding may
// decide.
std::vector<double> Reference(const SamplingParams& params, const std::vector<float>& logits,
                              bool* close) {
  const size_t vocab = logits.size();
  std::vector<size_t> ranked(vocab);
  std::iota(ranked.begin(), ranked.end(), size_t{0});
  std::stable_sort(ranked.begin(), ranked.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  const double top = logits[ranked[0]];
  const auto weight = [&](size_t v) {
    const double w =
        std::exp((static_cast<double>(logits[v]) - top) / static_cast<double>(params.temperature));
    return w < 1.3e-38 ? 0.0 : w;
  };
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < ranked.size()) {
    ranked.resize(static_cast<size_t>(params.top_k));
  }
  if (params.top_p < 1.0f) {
    double total = 0, sum = 0;
    for (const size_t v : ranked) total += weight(v);
    const double wanted = static_cast<double>(params.top_p) * total;
    size_t kept = 0;
    while (kept < ranked.size() && (kept == 0 || sum < wanted)) {
      sum += weight(ranked[kept++]);
      if (std::fabs(sum - wanted) < 3e-5 * total && sum != wanted) *close = true;
    }
    ranked.resize(kept);
  }
  if (params.min_p > 0.0f) {
    const double least = params.min_p;
    std::erase_if(ranked, [&](size_t v) {
      const double w = weight(v);
      if (std::fabs(w - least) < 1e-4 * least && w != least) *close = true;
      return w < least;
    });
  }
  std::vector<double> p(vocab, 0.0);
  double total = 0;
  for (const size_t v : ranked) total += weight(v);
  for (const size_t v : ranked) p[v] = weight(v) / total;
  return p;
}

std::vector<float> RandomLogits(std::mt19937& random, size_t vocab, int kind) {
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(vocab);
  for (size_t v = 0; v < vocab; ++v) {
    switch (kind) {
      case 0:
        logits[v] = normal(random);
        break;
      case 1:
        logits[v] = std::round(normal(random));
        break;  // many ties
      case 2:
        logits[v] = 1.25f;
        break;  // all equal
      case 3:
        logits[v] = random() % 3 == 0 ? normal(random) : kMinusInfinity;
        break;
      case 4:
        logits[v] = v == vocab / 2 ? 40.0f : normal(random);
        break;  // certain
      case 5:
        logits[v] = -0.5f * static_cast<float>(v);
        break;
      default:
        logits[v] = 1000.0f * normal(random);
        break;
    }
  }
  if (kind == 3) logits[random() % vocab] = 0.5f;
  return logits;
}

TEST(FilteredSoftmax, AgainstTheDefinition) {
  std::mt19937 random(3);
  FilterScratch scratch;
  int compared = 0, skipped = 0;
  for (const size_t vocab : {1, 2, 3, 17, 100, 1000}) {
    for (int kind = 0; kind < 7; ++kind) {
      const std::vector<float> logits = RandomLogits(random, vocab, kind);
      for (const float temperature : {0.1f, 0.7f, 1.0f, 5.0f}) {
        for (const int top_k :
             {0, 1, 2, 5, 40, static_cast<int>(vocab), static_cast<int>(vocab) + 10}) {
          for (const float top_p : {1.0f, 0.99f, 0.7f, 0.5f, 0.1f, 1e-6f}) {
            for (const float min_p : {0.0f, 0.01f, 0.1f, 0.5f, 1.0f}) {
              SamplingParams params;
              params.temperature = temperature;
              params.top_k = top_k;
              params.top_p = top_p;
              params.min_p = min_p;
              bool close = false;
              const std::vector<double> expected = Reference(params, logits, &close);
              std::vector<float> ours = logits;
              FilteredSoftmax(params, ours, scratch);
              double total = 0;
              for (const float p : ours) total += p;
              ASSERT_NEAR(total, 1.0, 1e-5);
              if (close) {
                ++skipped;
                continue;
              }
              ++compared;
              for (size_t v = 0; v < vocab; ++v) {
                const auto where = [&] {
                  return fmt::format("vocab {} kind {} T {} top_k {} top_p {} min_p {} token {}",
                                     vocab, kind, temperature, top_k, top_p, min_p, v);
                };
                if (expected[v] == 0.0) {
                  ASSERT_EQ(ours[v], 0.0f) << where();
                } else {
                  ASSERT_NEAR(ours[v], expected[v], 1e-7 + 1e-3 * expected[v]) << where();
                  if (expected[v] > 1e-30) {
                    ASSERT_GT(ours[v], 0.0f) << where();
                  }
                }
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 30 * skipped) << skipped;
}

// Many candidates are ranked another way than few, with the same result to the last bit.
TEST(FilteredSoftmax, LargeVocabulary) {
  std::mt19937 random(4);
  FilterScratch scratch;
  const SerialTeam team;
  for (int kind = 0; kind < 7; ++kind) {
    std::vector<float> logits = RandomLogits(random, 20000, kind);
    for (size_t v = 0; v < logits.size(); v += 7) logits[v] = v % 2 == 0 ? 0.0f : -0.0f;
    std::vector<size_t> ranked(logits.size());
    std::iota(ranked.begin(), ranked.end(), size_t{0});
    std::stable_sort(ranked.begin(), ranked.end(),
                     [&](size_t a, size_t b) { return logits[a] > logits[b]; });
    SamplingParams params;
    params.temperature = 2.0f;
    params.top_p = 0.7f;
    std::vector<float> weights(logits.size()), expected(logits.size());
    for (size_t v = 0; v < logits.size(); ++v)
      weights[v] = ExpNonPositive((logits[v] - logits[ranked[0]]) * 0.5f);
    const double total = team.Sum(static_cast<int>(weights.size()),
                                  [&](int v) { return weights[static_cast<size_t>(v)]; });
    double sum = 0;
    size_t kept = 0;
    while (sum < static_cast<double>(params.top_p) * total)
      sum += static_cast<double>(weights[ranked[kept++]]);
    for (size_t i = 0; i < kept; ++i)
      expected[ranked[i]] = weights[ranked[i]] * static_cast<float>(1 / sum);
    FilteredSoftmax(params, logits, scratch);
    EXPECT_EQ(logits, expected) << "kind " << kind << ", " << kept << " tokens";
  }
}

// Top-p is taken over what top-k left, also where a tail below the nucleus reaches past top-k.
TEST(FilteredSoftmax, TopPOfWhatTopKLeft) {
  std::vector<float> logits(1000, std::log(2.4e-4f));
  logits[0] = 0.0f;
  for (size_t v = 1; v <= 10; ++v) logits[v] = std::log(0.12f);
  SamplingParams params;
  params.temperature = 1.0f;
  params.top_k = 11;
  params.top_p = 0.5f;  // of 2.2: two tokens make 1.12; of all 2.44 it would take three
  FilterScratch scratch;
  FilteredSoftmax(params, logits, scratch);
  EXPECT_GT(logits[1], 0.0f);
  EXPECT_EQ(logits[2], 0.0f);
}

// The tokens within n standard deviations of the largest logit, straight from the definition, and
// what the other filters leave of them.
TEST(FilteredSoftmax, TopNSigmaKeepsWhatIsNearTheLargestLogit) {
  std::mt19937 random(11);
  FilterScratch scratch;
  int kept = 0, dropped = 0;
  for (const size_t vocab : {1, 2, 17, 1000}) {
    for (int kind = 0; kind < 7; ++kind) {
      const std::vector<float> logits = RandomLogits(random, vocab, kind);
      double count = 0, sum = 0, squares = 0;
      for (const float value : logits) count += std::isfinite(value) ? 1 : 0;
      for (const float value : logits) sum += std::isfinite(value) ? value : 0.0;
      for (const float value : logits)
        squares += std::isfinite(value) ? std::pow(value - sum / count, 2) : 0.0;
      const float top = *std::max_element(logits.begin(), logits.end());
      for (const float n : {0.5f, 1.0f, 2.0f, 4.0f}) {
        const double floor = top - static_cast<double>(n) * std::sqrt(squares / count);
        for (const float temperature : {0.25f, 1.0f, 8.0f}) {
          for (const int top_k : {0, 3}) {
            SamplingParams params;
            params.temperature = temperature;
            params.top_k = top_k;
            params.top_n_sigma = n;
            std::vector<float> ours = logits;
            FilteredSoftmax(params, ours, scratch);
            // The other filters over logits that were cut by hand.
            std::vector<float> expected = logits;
            for (float& value : expected) {
              if (std::fabs(value - floor) < 1e-5 * (1 + std::fabs(floor))) continue;
              if (value < floor) value = kMinusInfinity;
            }
            params.top_n_sigma = 0;
            FilteredSoftmax(params, expected, scratch);
            for (size_t v = 0; v < vocab; ++v) {
              if (std::fabs(logits[v] - floor) < 1e-5 * (1 + std::fabs(floor))) continue;
              ASSERT_EQ(ours[v], expected[v]) << fmt::format("vocab {} kind {} n {} T {} token {}",
                                                             vocab, kind, n, temperature, v);
              (ours[v] > 0 ? kept : dropped) += 1;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(kept, 1000);
  EXPECT_GT(dropped, 1000);
}

TEST(FilteredSoftmax, TopNSigmaIsOffAtZeroAndBelow) {
  std::mt19937 random(12);
  FilterScratch scratch;
  const std::vector<float> logits = RandomLogits(random, 1000, 0);
  SamplingParams params;
  params.temperature = 0.5f;
  std::vector<float> plain = logits;
  FilteredSoftmax(params, plain, scratch);
  for (const float n : {-1.0f, 0.0f, 1000.0f}) {
    params.top_n_sigma = n;
    std::vector<float> ours = logits;
    FilteredSoftmax(params, ours, scratch);
    EXPECT_EQ(ours, plain) << n;
  }
}

// Logits of a broken or hostile checkpoint: still a distribution, on the largest logit there is.
TEST(FilteredSoftmax, NotANumber) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              inf = std::numeric_limits<float>::infinity();
  FilterScratch scratch;
  for (const std::vector<float>& bad : {std::vector<float>{nan, nan, nan},
                                        {1, nan, 2},
                                        {1, inf, 2},
                                        {inf, inf, nan},
                                        {kMinusInfinity, kMinusInfinity, kMinusInfinity},
                                        {3e38f, -3e38f, 0}}) {
    for (const int top_k : {0, 1, 2}) {
      for (const float top_p : {1.0f, 0.5f}) {
        for (const float min_p : {0.0f, 0.2f}) {
          for (const float temperature : {1.0f, 1e-40f}) {
            SamplingParams params;
            params.temperature = temperature;
            params.top_k = top_k;
            params.top_p = top_p;
            params.min_p = min_p;
            std::vector<float> p = bad;
            FilteredSoftmax(params, p, scratch);
            double total = 0;
            for (const float value : p) total += value;
            EXPECT_NEAR(total, 1.0, 1e-6) << fmt::format("{} {} {}", bad[0], bad[1], bad[2]);
          }
        }
      }
    }
  }
}

TEST(Exp, RelativeError) {
  double worst = 0;
  for (double x = -86.9; x <= 0; x += 1e-4) {
    const auto argument = static_cast<float>(x);
    const double exact = std::exp(static_cast<double>(argument));
    worst = std::max(worst, std::fabs(ExpNonPositive(argument) - exact) / exact);
  }
  EXPECT_LT(worst, 3e-7);
  EXPECT_EQ(ExpNonPositive(0.0f), 1.0f);
  EXPECT_EQ(ExpNonPositive(-100.0f), 0.0f);
  EXPECT_EQ(ExpNonPositive(kMinusInfinity), 0.0f);
}

TEST(ArgMax, TiesGoToTheLowestId) {
  std::mt19937 random(5);
  for (size_t n = 1; n < 100; ++n) {
    std::vector<float> values(n);
    for (float& value : values) value = static_cast<float>(random() % 4);
    EXPECT_EQ(ArgMax(values), std::max_element(values.begin(), values.end()) - values.begin());
    values[random() % n] = std::numeric_limits<float>::quiet_NaN();
    const int best = ArgMax(values);
    ASSERT_LT(best, static_cast<int>(n));
    if (n > 1) {
      EXPECT_FALSE(std::isnan(values[static_cast<size_t>(best)])) << "a NaN won over a number";
      for (const float value : values) EXPECT_FALSE(value > values[static_cast<size_t>(best)]);
    }
    std::fill(values.begin(), values.end(), kMinusInfinity);
    EXPECT_EQ(ArgMax(values), 0);
  }
}

TEST(Penalties, AsDefined) {
  SamplingParams params;
  params.repetition_penalty = 2.0f;
  params.presence_penalty = 0.5f;
  params.frequency_penalty = 0.25f;
  params.bias = {{3, 10.0f}, {3, 1.0f}};
  std::vector<float> logits = {4.0f, -4.0f, 1.0f, 0.0f};
  const std::vector<TokenCount> counts = {{0, 0}, {1, 2}};
  AdjustLogits(params, counts, logits);
  EXPECT_EQ(logits, (std::vector{2.0f, -8.0f - 1.0f, 1.0f, 11.0f}));
}

TEST(LogSumExp, Reference) {
  EXPECT_NEAR(LogSumExp(std::vector<float>{0, 0}), std::log(2.0), 1e-12);
  EXPECT_NEAR(LogSumExp(std::vector<float>{1000, 1000, -1000}), 1000 + std::log(2.0), 1e-9);
}

// ---- Coupled choices ----

TEST(Coupled, ChoiceFollowsTheDistribution) {
  const std::vector<float> p = {0.5f, 0.0f, 0.3f, 0.001f, 0.15f, 0.049f, 0.0f};
  std::vector<int> counts(p.size());
  constexpr int kDraws = 200000;
  for (int i = 0; i < kDraws; ++i)
    ++counts[static_cast<size_t>(CoupledChoice({9, 0, static_cast<uint32_t>(i)}, p))];
  double statistic = 0;
  for (size_t v = 0; v < p.size(); ++v) {
    if (p[v] == 0.0f) {
      EXPECT_EQ(counts[v], 0);
    } else {
      const double expected = static_cast<double>(p[v]) * kDraws;
      statistic += (counts[v] - expected) * (counts[v] - expected) / expected;
    }
  }
  EXPECT_LT(statistic, 33.0);  // four degrees of freedom, about 1e-6
}

// The shortcut over unlikely tokens never changes the choice.
TEST(Coupled, SameAsLookingAtEveryToken) {
  std::mt19937 random(8);
  FilterScratch scratch;
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<float> p = RandomLogits(random, 1 + random() % 300, trial % 7);
    SamplingParams params;
    params.temperature = trial % 2 == 0 ? 1.0f : 0.3f;
    FilteredSoftmax(params, p, scratch);
    const DrawKey key{random(), 3, static_cast<uint32_t>(trial)};
    int best = -1;
    float best_score = 0;
    for (size_t v = 0; v < p.size(); ++v) {
      if (!(p[v] > 0)) continue;
      const float score = std::log(p[v]) + Gumbel(key, static_cast<uint32_t>(v));
      if (best < 0 || score > best_score) {
        best = static_cast<int>(v);
        best_score = score;
      }
    }
    ASSERT_EQ(CoupledChoice(key, p), best);
  }
}

TEST(Coupled, GumbelMoments) {
  double sum = 0, squares = 0;
  constexpr int kDraws = 400000;
  for (int i = 0; i < kDraws; ++i) {
    const double g =
        Gumbel({1, 2, static_cast<uint32_t>(i / 1000)}, static_cast<uint32_t>(i % 1000));
    sum += g;
    squares += g * g;
  }
  const double mean = sum / kDraws, variance = squares / kDraws - mean * mean;
  EXPECT_NEAR(mean, 0.5772156649, 0.01);
  EXPECT_NEAR(variance, 1.6449340668, 0.02);
}

TEST(AllFinite, OneBadValueAnywhereIsFound) {
  for (const int size : {1, 5, 16, 17, 48, 1000}) {
    std::vector<float> values(static_cast<size_t>(size), 3e38f);
    values[0] = -3e38f;
    EXPECT_TRUE(AllFinite(values)) << size;
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      for (size_t at = 0; at < values.size(); at += 1 + values.size() / 7) {
        const float kept = std::exchange(values[at], bad);
        EXPECT_FALSE(AllFinite(values)) << size << " " << at << " " << bad;
        values[at] = kept;
      }
    }
  }
  EXPECT_TRUE(AllFinite({}));
}

}  // namespace
}  // namespace loopspec

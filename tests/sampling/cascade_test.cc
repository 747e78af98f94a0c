// Theorem 1 and its lemma by exact computation, and the cascade's corners in float.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "sampling/cascade.h"
#include "sampling/team.h"
#include "tests/support/enumerate.h"

namespace loopspec {
namespace {

using Distribution = std::vector<double>;

double TotalVariation(const Distribution& p, const Distribution& q) {
  double sum = 0;
  for (size_t v = 0; v < p.size(); ++v) sum += std::fabs(p[v] - q[v]);
  return sum / 2;
}

// Of all kinds: flat, peaked, with zeros, certain.
Distribution RandomDistribution(std::mt19937_64& random, int vocab) {
  std::uniform_real_distribution<double> uniform(0, 1);
  const double sharpness = std::pow(10.0, 3 * uniform(random) - 1);
  const double zeros = uniform(random) < 0.5 ? 0.0 : uniform(random);
  Distribution p(static_cast<size_t>(vocab));
  double total = 0;
  for (double& value : p) {
    value = uniform(random) < zeros ? 0.0 : std::pow(uniform(random), sharpness);
    total += value;
  }
  if (total <= 0) {
    p[random() % p.size()] = 1;
    return p;
  }
  for (double& value : p) value /= total;
  return p;
}

// Every choice enumerated.
struct EnumeratedDraw {
  Enumerator* enumerator;
  bool Accept(int, double probability) {
    const double outcomes[2] = {1.0 - probability, probability};
    return enumerator->Choose(outcomes) == 1;
  }
  template <typename F>
  int Choose(uint32_t, int n, F weight, double total) {
    Distribution outcomes(static_cast<size_t>(n));
    for (int v = 0; v < n; ++v) outcomes[static_cast<size_t>(v)] = weight(v) / total;
    return enumerator->Choose(outcomes);
  }
};

// The probability that no draft is accepted, over all choices of two proposals and their
// verification; the probability of each token besides.
double RejectionProbability(const Distribution& p1, const Distribution& p2,
                            const Distribution& target, LaterProposal variant,
                            Distribution& output) {
  const int vocab = static_cast<int>(target.size());
  output.assign(target.size(), 0.0);
  SerialTeam team;
  Enumerator enumerator;
  double rejected = 0;
  do {
    EnumeratedDraw draw{&enumerator};
    Distribution q1 = p1, q2 = p2, rho = target;
    Recorded<double> recorded[2];
    int count = 0;
    const ProposalOutcome first = Propose(team, draw, vocab, q1.data(), recorded, 0, 0, variant);
    recorded[count++] = {first.token, q1.data()};
    const ProposalOutcome second =
        Propose(team, draw, vocab, q2.data(), recorded, count, 1, variant);
    if (second.token >= 0) {
      EXPECT_GT(q2[static_cast<size_t>(second.token)], 0);
      EXPECT_NE(second.token, first.token);
      recorded[count++] = {second.token, q2.data()};
    }
    const Verdict verdict = Verify(team, draw, vocab, rho.data(), recorded, count);
    EXPECT_GT(target[static_cast<size_t>(verdict.token)], 0) << "a token of probability zero";
    output[static_cast<size_t>(verdict.token)] += enumerator.weight();
    if (verdict.accepted < 0) rejected += enumerator.weight();
  } while (enumerator.Next());
  return rejected;
}

TEST(Theorem1, BothBoundsOverTenThousandTriples) {
  std::mt19937_64 random(2024);
  int informative = 0;
  for (int trial = 0; trial < 10000; ++trial) {
    const int vocab = 2 + static_cast<int>(random() % 5);
    const Distribution target = RandomDistribution(random, vocab);
    Distribution p1 = RandomDistribution(random, vocab), p2 = RandomDistribution(random, vocab);
    if (trial % 3 == 0) {  // closer to the target with depth, as models are
      for (int v = 0; v < vocab; ++v) {
        const auto i = static_cast<size_t>(v);
        p1[i] = 0.6 * target[i] + 0.4 * p1[i];
        p2[i] = 0.95 * target[i] + 0.05 * p2[i];
      }
    }
    if (trial % 17 == 0) p1 = p2;
    if (trial % 19 == 0) p1 = target;
    if (trial % 23 == 0) p2 = target;
    const double eps2 = TotalVariation(p2, target);
    Distribution output;
    const double gated =
        RejectionProbability(p1, p2, target, LaterProposal::kGatedResidual, output);
    ASSERT_LE(gated, 2 * eps2 + 1e-12) << trial;
    ASSERT_LT(TotalVariation(output, target), 1e-12) << trial;
    const double masked = RejectionProbability(p1, p2, target, LaterProposal::kResidual, output);
    ASSERT_LT(TotalVariation(output, target), 1e-12) << trial;
    RejectionProbability(p1, p2, target, LaterProposal::kNonResidual, output);
    ASSERT_LT(TotalVariation(output, target), 1e-12) << trial;
    // Without gate and mask, in closed form: eps1 * TV(p_R (-) p_1, p_2 (-) p_1), and the lemma.
    const double eps1 = TotalVariation(p1, target);
    Distribution nu1 = p2, nu2 = target;
    SerialTeam team;
    const bool mass1 = Residual(team, vocab, nu1.data(), p1.data());
    const bool mass2 = Residual(team, vocab, nu2.data(), p1.data());
    double plain = eps1;
    if (mass1 && mass2 && eps1 > 1e-9 && TotalVariation(p1, p2) > 1e-9) {
      ASSERT_LE(TotalVariation(nu1, nu2), eps2 / eps1 + 1e-9) << trial;
      plain = eps1 * TotalVariation(nu1, nu2);
      ++informative;
    }
    ASSERT_LE(plain, eps2 + 1e-9) << trial;
    ASSERT_LE(masked, 1.0 + 1e-12);
  }
  EXPECT_GT(informative, 8000);
}

TEST(Residual, Corners) {
  SerialTeam team;
  std::vector<double> rho = {0.5, 0.5, 0.0}, q = {0.5, 0.5, 0.0};
  EXPECT_FALSE(Residual(team, 3, rho.data(), q.data()));
  EXPECT_EQ(rho, (std::vector{0.5, 0.5, 0.0}));
  q = {1.0, 0.0, 0.0};
  EXPECT_TRUE(Residual(team, 3, rho.data(), q.data()));
  EXPECT_EQ(rho, (std::vector{0.0, 1.0, 0.0}));
}

// In float, where sums are not exactly one: never a token without probability, never none at all.
TEST(Cascade, NeverATokenOfProbabilityZero) {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 20000; ++trial) {
    const int vocab = 1 + static_cast<int>(random() % 40);
    const auto draw_float = [&] {
      const Distribution p = RandomDistribution(random, vocab);
      std::vector<float> f(p.begin(), p.end());
      const float scale = 1.0f + (static_cast<float>(random() % 5) - 2.0f) * 1e-7f;
      for (float& value : f) value *= scale;
      return f;
    };
    std::vector<float> q1 = draw_float(), q2 = trial % 5 == 0 ? q1 : draw_float();
    const std::vector<float> target = trial % 7 == 0 ? q1 : draw_float();
    std::vector<float> rho = target;
    SerialTeam team;
    PhiloxDraw<SerialTeam> draw{{static_cast<uint64_t>(trial), 0, 5}, team};
    Recorded<float> recorded[2];
    int count = 0;
    const auto variant = static_cast<LaterProposal>(trial % 3);
    const ProposalOutcome first = Propose(team, draw, vocab, q1.data(), recorded, 0, 0, variant);
    ASSERT_GE(first.token, 0);
    ASSERT_TRUE(first.gate_open);
    ASSERT_GT(q1[static_cast<size_t>(first.token)], 0.0f);
    recorded[count++] = {first.token, q1.data()};
    const ProposalOutcome second =
        Propose(team, draw, vocab, q2.data(), recorded, count, 1, variant);
    if (second.token >= 0) {
      ASSERT_GT(q2[static_cast<size_t>(second.token)], 0.0f);
      recorded[count++] = {second.token, q2.data()};
    }
    const Verdict verdict = Verify(team, draw, vocab, rho.data(), recorded, count);
    ASSERT_GE(verdict.token, 0);
    ASSERT_GT(target[static_cast<size_t>(verdict.token)], 0.0f);
  }
}

TEST(SerialTeam, ChooseClosesTheSumWithTheLastPositiveEntry) {
  const std::vector<double> weights = {0.0, 0.25, 0.0, 0.25, 0.0};
  const auto weight = [&](int i) { return weights[static_cast<size_t>(i)]; };
  EXPECT_EQ(SerialTeam().Choose(5, weight, 1.0, 0.999), 3);
  EXPECT_EQ(SerialTeam().Choose(5, weight, 1.0, 0.0), 1);
  EXPECT_EQ(SerialTeam().Choose(5, weight, 1.0, 0.25), 3);
  EXPECT_EQ(SerialTeam().Choose(
                5, [](int) { return 0.0; }, 1.0, 0.5),
            -1);
}

TEST(SerialTeam, SumOverAnyLength) {
  for (int n = 0; n < 50; ++n)
    EXPECT_EQ(SerialTeam().Sum(n, [](int i) { return i; }), n * (n - 1) / 2.0);
}

}  // namespace
}  // namespace loopspec

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

// ---- No residual mass left ----
//
// After a rejection there is always some, in exact arithmetic. In float the target may lie at or
// below the draft's distribution everywhere: then the target itself is what remains to be drawn
// from.

// Rejects every draft, and keeps the weights that the fallback is drawn with.
struct RejectingDraw {
  std::vector<double> weights;
  bool Accept(int, double) { return false; }
  template <typename F>
  int Choose(uint32_t, int n, F weight, double) {
    weights.clear();
    for (int v = 0; v < n; ++v) weights.push_back(static_cast<double>(weight(v)));
    return 0;
  }
};

std::vector<double> FallbackWeights(const std::vector<float>& target,
                                    const std::vector<std::vector<float>>& drafts) {
  std::vector<float> rho = target;
  std::vector<Recorded<float>> recorded;
  for (size_t j = 0; j < drafts.size(); ++j)
    recorded.push_back({static_cast<int32_t>(j), drafts[j].data()});
  SerialTeam team;
  RejectingDraw draw;
  const Verdict verdict = Verify(team, draw, static_cast<int>(target.size()), rho.data(),
                                 recorded.data(), static_cast<int>(recorded.size()));
  EXPECT_EQ(verdict.accepted, -1);
  return draw.weights;
}

TEST(CascadeWithoutMass, TheTargetStaysWhereTheDraftTookItAll) {
  const std::vector<float> target = {0.5f, 0.3f, 0.2f, 0.0f};
  std::vector<float> above = target;  // by one rounding each
  for (float& value : above) value = std::nextafter(value, 1.0f);
  const std::vector<double> whole(target.begin(), target.end());
  EXPECT_EQ(FallbackWeights(target, {target}), whole);
  EXPECT_EQ(FallbackWeights(target, {above}), whole);
  EXPECT_EQ(FallbackWeights(target, {above, target, above}), whole);
  // A later draft is taken out of what the earlier one left, here all of it.
  const std::vector<double> rest = FallbackWeights(target, {above, {1.0f, 0.0f, 0.0f, 0.0f}});
  EXPECT_EQ(rest[0], 0.0);
  EXPECT_NEAR(rest[1], 0.6, 1e-6);
  EXPECT_NEAR(rest[2], 0.4, 1e-6);
  EXPECT_EQ(rest[3], 0.0);
}

// Mass so small that one over it is infinite in float: 0 times that is NaN, in the target and in
// what a proposal would be drawn from.
TEST(CascadeWithoutMass, MassBelowWhatFloatCanScaleCountsAsNone) {
  constexpr float kTiny = 1e-44f;
  const std::vector<float> target = {0.75f, 0.25f, kTiny, 0.0f}, draft = {0.75f, 0.25f, 0.0f, 0.0f};
  EXPECT_EQ(FallbackWeights(target, {draft}),
            (std::vector<double>{0.75, 0.25, static_cast<double>(kTiny), 0.0}));
  SerialTeam team;
  std::vector<float> rho = target;
  EXPECT_FALSE(Residual(team, 4, rho.data(), draft.data()));
  EXPECT_EQ(rho, target);
  const Recorded<float> all[] = {{0, draft.data()}, {1, draft.data()}};
  EXPECT_FALSE(Mask(team, 4, rho.data(), all, 2));
  EXPECT_EQ(rho, target);
  for (const auto variant : {LaterProposal::kResidual, LaterProposal::kNonResidual}) {
    PhiloxDraw<SerialTeam> draw{{1, 0, 5}, team};
    rho = target;
    EXPECT_EQ(Propose(team, draw, 4, rho.data(), all, 2, 2, variant).token, -1);
  }
}

// The gate asks whether the deeper readout has withdrawn confidence from the draft: the same
// probability is no less. The text would be as exact with the gate open; the drafts would be others
// than the paper's.
TEST(Gate, IsClosedWhereTheDraftIsAsLikelyAsBefore) {
  const std::vector<float> first = {0.5f, 0.2f, 0.3f};
  const Recorded<float> recorded[] = {{0, first.data()}};
  SerialTeam team;
  PhiloxDraw<SerialTeam> draw{{1, 0, 5}, team};
  const auto propose = [&](std::vector<float> rho) {
    return Propose(team, draw, 3, rho.data(), recorded, 1, 1, LaterProposal::kGatedResidual);
  };
  const ProposalOutcome same = propose({0.5f, 0.3f, 0.2f});
  EXPECT_FALSE(same.gate_open);
  EXPECT_EQ(same.token, -1);
  const ProposalOutcome less = propose({0.49f, 0.31f, 0.2f});
  EXPECT_TRUE(less.gate_open);
  EXPECT_EQ(less.token, 1);  // the only one that is likelier than before
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

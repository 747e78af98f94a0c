// Acceptance worked out from distributions, against the cascade itself over all its draws.
#include "calibrate/depth_rates.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "sampling/cascade.h"
#include "sampling/team.h"
#include "tests/support/enumerate.h"

namespace loopspec {
namespace {

constexpr int kRecurrence = 5, kVocab = 4;

struct EnumeratedDraw {
  Enumerator* enumerator;
  bool Accept(int, double probability) {
    const double outcomes[2] = {1.0 - probability, probability};
    return enumerator->Choose(outcomes) == 1;
  }
  template <typename F>
  int Choose(uint32_t, int n, F weight, double total) {
    std::vector<double> outcomes(static_cast<size_t>(n));
    for (int v = 0; v < n; ++v) outcomes[static_cast<size_t>(v)] = weight(v) / total;
    return enumerator->Choose(outcomes);
  }
};

// Runs the decoder's own proposals and verification down every path of choices.
DepthRates Enumerated(const PositionReadouts& readouts, const std::vector<int>& depths) {
  DepthRates rates{depths, std::vector<double>(depths.size()),
                   std::vector<double>(depths.size() - 1)};
  SerialTeam team;
  Enumerator enumerator;
  do {
    EnumeratedDraw draw{&enumerator};
    std::vector<std::vector<double>> q(depths.size());
    Recorded<double> recorded[kMaxProposals];
    std::vector<size_t> proposal;  // of each recorded draft
    std::vector<char> open(depths.size());
    for (size_t j = 0; j < depths.size(); ++j) {
      const std::span<const double> p = readouts.At(depths[j]);
      q[j].assign(p.begin(), p.end());
      const ProposalOutcome outcome =
          Propose(team, draw, kVocab, q[j].data(), recorded, static_cast<int>(proposal.size()),
                  static_cast<int>(j), LaterProposal::kGatedResidual);
      open[j] = outcome.gate_open;
      if (outcome.token < 0) continue;
      recorded[proposal.size()] = {outcome.token, q[j].data()};
      proposal.push_back(j);
    }
    const std::span<const double> p = readouts.At(kRecurrence);
    std::vector<double> rho(p.begin(), p.end());
    const Verdict verdict =
        Verify(team, draw, kVocab, rho.data(), recorded, static_cast<int>(proposal.size()));
    for (size_t j = 1; j < depths.size(); ++j)
      rates.gate[j - 1] += open[j] ? enumerator.weight() : 0.0;
    if (verdict.accepted >= 0)
      rates.accepted[proposal[static_cast<size_t>(verdict.accepted)]] += enumerator.weight();
  } while (enumerator.Next());
  return rates;
}

PositionReadouts RandomReadouts(std::mt19937_64& random, bool certain) {
  std::uniform_real_distribution<double> uniform(0, 1);
  PositionReadouts readouts;
  readouts.support = kVocab;
  for (int depth = 1; depth <= kRecurrence; ++depth) {
    std::vector<double> p(kVocab);
    double total = 0;
    for (double& value : p) total += value = uniform(random) < 0.3 ? 0 : uniform(random);
    if (certain || total <= 0) {
      p.assign(kVocab, 0.0);
      p[random() % kVocab] = total = 1;
    }
    for (double& value : p) value /= total;
    readouts.choices.push_back(
        static_cast<int32_t>(std::max_element(p.begin(), p.end()) - p.begin()));
    readouts.probabilities.insert(readouts.probabilities.end(), p.begin(), p.end());
  }
  return readouts;
}

void ExpectSame(const DepthRates& a, const DepthRates& b) {
  for (size_t j = 0; j < a.accepted.size(); ++j)
    EXPECT_NEAR(a.accepted[j], b.accepted[j], 1e-9)
        << fmt::format("proposal {} of {}", j, fmt::join(a.depths, ","));
  for (size_t j = 0; j < a.gate.size(); ++j)
    EXPECT_NEAR(a.gate[j], b.gate[j], 1e-9)
        << fmt::format("gate {} of {}", j, fmt::join(a.depths, ","));
}

TEST(DepthRates, AreTheCascadesOwn) {
  std::mt19937_64 random(7);
  double seen[3] = {0, 0, 0};
  for (int round = 0; round < 300; ++round) {
    const PositionReadouts readouts = RandomReadouts(random, false);
    for (const std::vector<int>& depths : {std::vector{2}, std::vector{1, 2}, std::vector{1, 4},
                                           std::vector{1, 2, 3}, std::vector{2, 3, 4}}) {
      DepthRates rates{depths, std::vector<double>(depths.size()),
                       std::vector<double>(depths.size() - 1)};
      AddCascade(readouts, rates);
      ExpectSame(rates, Enumerated(readouts, depths));
      for (size_t j = 0; j < depths.size(); ++j) seen[j] += rates.accepted[j];
    }
  }
  for (const double sum : seen) EXPECT_GT(sum, 5);  // every proposal had its say
}

// Greedy decoding is the cascade over certainties.
TEST(DepthRates, GreedyIsTheCascadeOfCertainties) {
  std::mt19937_64 random(8);
  for (int round = 0; round < 500; ++round) {
    const PositionReadouts readouts = RandomReadouts(random, true);
    for (const std::vector<int>& depths :
         {std::vector{3}, std::vector{1, 3}, std::vector{1, 2, 4}}) {
      DepthRates greedy{depths, std::vector<double>(depths.size()),
                        std::vector<double>(depths.size() - 1)};
      DepthRates cascade = greedy;
      AddGreedy(readouts, greedy);
      AddCascade(readouts, cascade);
      ExpectSame(greedy, cascade);
    }
  }
}

TEST(DepthRates, FirstAcceptanceIsOneLessTheDistance) {
  std::mt19937_64 random(9);
  for (int round = 0; round < 100; ++round) {
    const PositionReadouts readouts = RandomReadouts(random, false);
    DepthRates rates{{2}, {0}, {}};
    AddCascade(readouts, rates);
    EXPECT_NEAR(rates.accepted[0], 1 - TotalVariation(readouts.At(2), readouts.At(kRecurrence)),
                1e-12);
  }
}

TEST(AdmissibleDepths, AreAllOfOneAndTwoAndAFewHundredOfThree) {
  EXPECT_EQ(AdmissibleDepths(4, 1).size(), 3u);
  EXPECT_EQ(AdmissibleDepths(4, 2), (std::vector<std::vector<int>>{{1, 2}, {1, 3}, {2, 3}}));
  EXPECT_EQ(AdmissibleDepths(4, 3), (std::vector<std::vector<int>>{{1, 2, 3}}));
  EXPECT_EQ(AdmissibleDepths(32, 2).size(), 31u * 30 / 2);
  EXPECT_FALSE(TriplesAreThinned(4));
  EXPECT_TRUE(TriplesAreThinned(32));
  const auto triples = AdmissibleDepths(32, 3);
  EXPECT_GE(triples.size(), 50u);
  EXPECT_LE(triples.size(), 300u);
  for (const std::vector<int>& depths : triples) {
    EXPECT_LT(depths[0], depths[1]);
    EXPECT_LT(depths[1], depths[2]);
    EXPECT_LT(depths[2], 32);
  }
  EXPECT_TRUE(AdmissibleDepths(1, 1).empty());
  EXPECT_TRUE(AdmissibleDepths(2, 2).empty());
}

}  // namespace
}  // namespace loopspec

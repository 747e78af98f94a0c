// Decisions made on the device against the CPU's functions on the same logits.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "backends/cuda/host/cuda_backend.h"
#include "backends/cuda/host/transfers.h"
#include "cuda_driver.h"
#include "sampling/cascade.h"
#include "sampling/filters.h"
#include "sampling/team.h"

namespace loopspec {
namespace {

ModelSpec Small() {
  ModelSpec spec;
  spec.family = "ouro";
  spec.hidden = 256;
  spec.heads = spec.kv_heads = 4;
  spec.head_dim = 64;
  spec.ff = 512;
  spec.vocab = 5000;
  spec.max_positions = 1024;
  spec.core_layers = 1;
  spec.recurrence = 3;
  spec.norms = NormPlacement::kSandwich;
  spec.loop_norm = true;
  return spec;
}

class CudaSampling : public testing::Test {
 protected:
  void SetUp() override {
    LOOPSPEC_NEEDS_GPU();
    cuda::Check(cudaSetDevice(0), "selecting the GPU");
    backend_ = std::make_unique<cuda::CudaBackend>(cuda::DeviceModel::Random(Small(), 5),
                                                   AllDepths(Small()), 0);
    driver_ = std::make_unique<StepDriver>(*backend_);
  }

  // The decision for a token at position 0 after full depth, and the raw logits behind it.
  Decision Decide(int token, uint64_t seed, int logprobs = -1) {
    driver_->Begin(3);
    driver_->AddRow(0, token, 0, 0);
    ReadoutPlan& readout = driver_->AddReadout(0, 2);
    readout.draw = {seed, 0, 1};
    readout.counts = counts_.data();
    readout.counts_length = static_cast<int32_t>(counts_.size());
    readout.logprobs = logprobs;
    const Decision decision = driver_->Run().decisions[0];
    logits_ = driver_->Logits(0);
    return decision;
  }
  // What the second readout of a token at position 0 chooses.
  int NextChoice(int token) {
    driver_->Begin(2);
    driver_->AddRow(1, token, 0, 0);
    driver_->AddReadout(0, 1);
    driver_->Run();
    return ArgMax(driver_->Logits(0));
  }
  std::vector<float> Distribution() {
    std::vector<float> p = logits_;
    AdjustLogits(driver_->sampling, counts_, p);
    FilterScratch scratch;
    FilteredSoftmax(driver_->sampling, p, scratch);
    return p;
  }

  std::unique_ptr<cuda::CudaBackend> backend_;
  std::unique_ptr<StepDriver> driver_;
  std::vector<TokenCount> counts_;
  std::vector<float> logits_;
};

TEST_F(CudaSampling, GreedyIsTheArgMaxAfterPenaltiesAndBias) {
  const int plain = Decide(3, 1).token;
  EXPECT_EQ(plain, ArgMax(logits_));
  driver_->sampling.bias = {{plain, -50.0f}};
  driver_->sampling.repetition_penalty = 1.3f;
  counts_ = {{plain, 2}, {17, 0}, {4999, 1}};
  const int adjusted = Decide(3, 1).token;
  std::vector<float> expected = logits_;
  AdjustLogits(driver_->sampling, counts_, expected);
  EXPECT_EQ(adjusted, ArgMax(expected));
  EXPECT_NE(adjusted, plain);
}

struct FixedMask : TokenMask {
  std::vector<uint32_t> words;
  std::span<const uint32_t> Words() override { return words; }
};

// Greedy, coupled and plain sampling under a mask, and log-probabilities over what it allows: as
// the CPU has them.
TEST_F(CudaSampling, MasksComeBeforeEverythingElse) {
  FixedMask mask;
  mask.words.resize((5000 + 31) / 32);
  const auto decide = [&](int token, uint64_t seed, int logprobs) {
    driver_->Begin(3);
    driver_->AddRow(0, token, 0, 0);
    ReadoutPlan& readout = driver_->AddReadout(0, 2);
    readout.draw = {seed, 0, 1};
    readout.logprobs = logprobs;
    readout.mask = &mask;
    const Decision decision = driver_->Run().decisions[0];
    logits_ = driver_->Logits(0);
    MaskLogits(std::vector<float>(logits_), mask.words, logits_);
    return decision;
  };
  for (const int every : {1, 7, 100, 4999}) {
    std::fill(mask.words.begin(), mask.words.end(), 0u);
    int allowed = 0;
    for (int v = every == 1 ? 0 : 3; v < 5000; v += every, ++allowed)
      mask.words[static_cast<size_t>(v) / 32] |= 1u << (v % 32);
    driver_->sampling = {};
    const Decision greedy = decide(3, 1, 4);
    EXPECT_EQ(greedy.token, ArgMax(logits_)) << every;
    EXPECT_EQ(std::ssize(greedy.top), std::min(4, allowed)) << every;
    const double total = LogSumExp(logits_);
    for (const Alternative& entry : greedy.top) {
      EXPECT_TRUE(Allows(mask.words.data(), entry.id));
      EXPECT_NEAR(entry.logprob, logits_[static_cast<size_t>(entry.id)] - total, 1e-4);
    }
    driver_->sampling.temperature = 1.0f;
    driver_->sampling.top_k = 5;
    driver_->sampling.top_p = 0.9f;
    for (const Sampler sampler : {Sampler::kCascade, Sampler::kCoupled}) {
      driver_->sampling.sampler = sampler;
      for (uint64_t seed = 0; seed < 20; ++seed) {
        const int token = decide(3, seed, -1).token;
        ASSERT_GE(token, 0);
        EXPECT_GT(Distribution()[static_cast<size_t>(token)], 0.0f) << every << " " << seed;
      }
    }
  }
}

// As FilteredSoftmax has it: the likeliest token has all the mass.
TEST_F(CudaSampling, ValuesOutOfRangeLeaveTheLikeliestToken) {
  driver_->sampling.temperature = 1e-40f;
  const int coldest = Decide(11, 5).token;
  ASSERT_GE(coldest, 0);
  EXPECT_EQ(Distribution()[static_cast<size_t>(coldest)], 1.0f);

  driver_->sampling.temperature = 1.0f;
  driver_->sampling.top_p = 0.9f;
  driver_->sampling.bias = {{7, std::numeric_limits<float>::infinity()}};
  EXPECT_EQ(Decide(11, 5).token, 7);
  std::vector<float> certain(Distribution().size(), 0.0f);
  certain[7] = 1.0f;
  EXPECT_EQ(Distribution(), certain);
}

TEST_F(CudaSampling, PlainSamplingFollowsTheFilters) {
  struct Case {
    float temperature;
    int top_k;
    float top_p, min_p, top_n_sigma = 0.0f;
  };
  for (const Case& c :
       {Case{1.0f, 0, 1.0f, 0.0f}, Case{0.7f, 0, 0.7f, 0.0f}, Case{1.0f, 5, 1.0f, 0.0f},
        Case{1.5f, 40, 0.9f, 0.0f}, Case{1.0f, 0, 1.0f, 0.2f}, Case{2.0f, 100, 0.95f, 0.05f},
        Case{1.0f, 0, 1.0f, 0.0f, 2.0f}, Case{1.5f, 40, 0.9f, 0.0f, 3.0f}}) {
    driver_->sampling.temperature = c.temperature;
    driver_->sampling.top_k = c.top_k;
    driver_->sampling.top_p = c.top_p;
    driver_->sampling.min_p = c.min_p;
    driver_->sampling.top_n_sigma = c.top_n_sigma;
    int same = 0;
    constexpr int kDraws = 60;
    for (int i = 0; i < kDraws; ++i) {
      const uint64_t seed = static_cast<uint64_t>(i) * 7919 + 1;
      const int token = Decide(11, seed).token;
      const std::vector<float> p = Distribution();
      ASSERT_GE(token, 0);
      ASSERT_GT(p[static_cast<size_t>(token)], 0.0f) << "a token of probability zero";
      const double u = Uniform({seed, 0, 1}, static_cast<uint32_t>(DrawPurpose::kSample));
      const int expected = SerialTeam().Choose(
          static_cast<int>(p.size()), [&](int v) { return p[static_cast<size_t>(v)]; }, 1.0, u);
      same += token == expected;
    }
    // Sums are rounded in another order; a draw may fall between.
    EXPECT_GE(same, kDraws - 1) << "top-k " << c.top_k << " top-p " << c.top_p;
  }
}

TEST_F(CudaSampling, CoupledTakesTheSameTokenAsTheCpu) {
  driver_->sampling.temperature = 1.0f;
  driver_->sampling.top_p = 0.9f;
  driver_->sampling.sampler = Sampler::kCoupled;
  int same = 0;
  for (int i = 0; i < 60; ++i) {
    const uint64_t seed = static_cast<uint64_t>(i) + 100;
    const int token = Decide(7, seed).token;
    same += token == CoupledChoice({seed, 0, 1}, Distribution());
  }
  EXPECT_GE(same, 59);
}

TEST_F(CudaSampling, LogprobsAreThoseOfTheRawSoftmax) {
  const Decision decision = Decide(9, 1, 5);
  const double log_sum = LogSumExp(logits_);
  EXPECT_NEAR(decision.logprob, logits_[static_cast<size_t>(decision.token)] - log_sum, 1e-4);
  ASSERT_EQ(decision.top.size(), 5u);
  std::vector<int> order(logits_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return logits_[static_cast<size_t>(a)] > logits_[static_cast<size_t>(b)];
  });
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(decision.top[i].id, order[i]);
}

// Drafts at depths 1 and 2, verified at depth 3, against the shared cascade code on the CPU.
TEST_F(CudaSampling, CascadeFollowsTheSharedCode) {
  driver_->sampling.temperature = 1.0f;
  driver_->sampling.top_p = 0.9f;
  const int vocab = backend_->spec().vocab;
  int accepted = 0, gates = 0, differences = 0;
  for (int i = 0; i < 100; ++i) {
    const DrawKey key{static_cast<uint64_t>(i) * 31 + 5, 0, 1};
    std::vector<std::vector<float>> q;
    std::vector<Recorded<float>> recorded;
    std::vector<RecordedDraft> drafts;
    SerialTeam team;
    PhiloxDraw<SerialTeam> draw{key, team};
    for (int d = 0; d < 3; ++d) {
      driver_->Begin(1);
      driver_->AddRow(0, 100 + i, 0, d);
      ReadoutPlan& readout = driver_->AddReadout(0, d);
      readout.draw = key;
      readout.purpose = d < 2 ? ReadoutPurpose::kPropose : ReadoutPurpose::kVerify;
      readout.proposal = d;
      readout.recorded_count = static_cast<int32_t>(drafts.size());
      std::copy(drafts.begin(), drafts.end(), readout.recorded);
      const Decision decision = driver_->Run().decisions[0];
      logits_ = driver_->Logits(0);
      std::vector<float> rho = Distribution();
      if (d < 2) {
        const ProposalOutcome expected =
            Propose(team, draw, vocab, rho.data(), recorded.data(),
                    static_cast<int>(recorded.size()), d, LaterProposal::kGatedResidual);
        differences += expected.token != decision.token || expected.gate_open != decision.gate_open;
        gates += d == 1 && decision.gate_open;
        if (decision.token >= 0 && expected.token >= 0) {
          q.push_back(rho);
          drafts.push_back({d, decision.token});
          recorded.clear();
          for (size_t r = 0; r < q.size(); ++r) recorded.push_back({drafts[r].token, q[r].data()});
        }
      } else {
        const Verdict expected = Verify(team, draw, vocab, rho.data(), recorded.data(),
                                        static_cast<int>(recorded.size()));
        differences += expected.token != decision.token || expected.accepted != decision.accepted;
        accepted += decision.accepted >= 0;
      }
    }
  }
  EXPECT_LE(differences, 3);  // of 300; rounding at a boundary
  EXPECT_GT(gates, 0);
  std::printf("    cascade: %d of 100 accepted, gate open %d times, %d differences from the CPU\n",
              accepted, gates, differences);
}

// What a distribution on one token does in the shared code is what greedy decisions do on the
// device, for every way to make a later proposal. The statistics count gates, so these must agree
// too.
TEST_F(CudaSampling, GreedyLaterProposalsFollowTheSharedCode) {
  const int vocab = backend_->spec().vocab;
  for (const LaterProposal later : {LaterProposal::kGatedResidual, LaterProposal::kNonResidual}) {
    driver_->sampling.later = later;
    int same = 0, other = 0;
    for (int i = 0; i < 40; ++i) {
      std::vector<RecordedDraft> drafts;
      std::vector<std::vector<float>> q;
      for (int d = 0; d < 2; ++d) {
        driver_->Begin(1);
        driver_->AddRow(0, 200 + i, 0, d);
        ReadoutPlan& readout = driver_->AddReadout(0, d);
        readout.purpose = ReadoutPurpose::kPropose;
        readout.proposal = d;
        // Every other time the first draft is what the second readout will choose.
        readout.recorded_count = static_cast<int32_t>(drafts.size());
        std::copy(drafts.begin(), drafts.end(), readout.recorded);
        const Decision decision = driver_->Run().decisions[0];
        logits_ = driver_->Logits(0);
        std::vector<float> rho(static_cast<size_t>(vocab), 0.0f);
        rho[static_cast<size_t>(ArgMax(logits_))] = 1.0f;
        std::vector<Recorded<float>> recorded;
        for (size_t r = 0; r < q.size(); ++r) recorded.push_back({drafts[r].token, q[r].data()});
        SerialTeam team;
        PhiloxDraw<SerialTeam> draw{{1, 0, 1}, team};
        std::vector<float> left = rho;
        const ProposalOutcome expected = Propose(team, draw, vocab, left.data(), recorded.data(),
                                                 static_cast<int>(recorded.size()), d, later);
        ASSERT_EQ(decision.token, expected.token) << "token " << i << ", proposal " << d;
        ASSERT_EQ(decision.gate_open, expected.gate_open) << "token " << i << ", proposal " << d;
        if (d == 0) {
          drafts.push_back({0, i % 2 == 0 ? decision.token : NextChoice(200 + i)});
          std::vector<float> point(static_cast<size_t>(vocab), 0.0f);
          point[static_cast<size_t>(drafts[0].token)] = 1.0f;
          q.push_back(std::move(point));
        } else {
          (expected.token < 0 ? same : other)++;
        }
      }
    }
    EXPECT_GT(same, 0);
    EXPECT_GT(other, 0);
  }
}

TEST_F(CudaSampling, RefusesLogitsThatAreNotFinite) {
  // A model that gives NaN for one token and is sound for the others.
  cuda::DeviceModel model = cuda::DeviceModel::Random(Small(), 5);
  constexpr int kBad = 7, kGood = 3;
  const size_t row_bytes = static_cast<size_t>(model.embedding.cols) * sizeof(cuda::bf16);
  cuda::FillAndWait(const_cast<cuda::bf16*>(model.embedding.data) +
                        static_cast<size_t>(kBad) * static_cast<size_t>(model.embedding.ld),
                    0xFF, row_bytes);
  cuda::CudaBackend backend(std::move(model), AllDepths(Small()), 0);
  StepDriver driver(backend);
  for (const float temperature : {0.0f, 1.0f}) {
    for (const Sampler sampler : {Sampler::kCascade, Sampler::kCoupled}) {
      for (const float penalty : {1.0f, 1.2f}) {
        driver.sampling.temperature = temperature;
        driver.sampling.sampler = sampler;
        driver.sampling.repetition_penalty = penalty;
        const TokenCount counts[] = {{kGood, 1}};
        driver.Begin(3);
        for (const int token : {kBad, kGood}) {
          const int row = driver.AddRow(token, token, 0, 0);
          ReadoutPlan& readout = driver.AddReadout(row, 2);
          readout.draw = {1, 0, 1};
          readout.counts = counts;
          readout.counts_length = penalty == 1.0f ? 0 : 1;
          readout.logprobs = 3;
        }
        const std::vector<Decision> decisions = driver.Run().decisions;
        EXPECT_FALSE(decisions[0].finite);
        EXPECT_EQ(decisions[0].token, -1);
        EXPECT_TRUE(decisions[1].finite);
        EXPECT_GE(decisions[1].token, 0);
        EXPECT_LT(decisions[1].token, Small().vocab);
        EXPECT_EQ(decisions[1].top.size(), 3u);
      }
    }
  }
}

TEST_F(CudaSampling, DeclaresHowManyLogprobsThereAre) {
  const int most = backend_->limits().max_logprobs;
  EXPECT_EQ(most, 32);
  EXPECT_EQ(Decide(9, 1, most).top.size(), static_cast<size_t>(most));
}

// The verified token has the target's distribution, whatever drafts were made before: 200,000 draws
// on the device against the filtered softmax at full depth.
TEST_F(CudaSampling, CascadeDrawsTheTargetsDistribution) {
  ModelSpec spec = Small();
  spec.vocab = 100;
  constexpr int kRows = 250, kDraws = 200000;
  cuda::CudaBackend backend(cuda::DeviceModel::Random(spec, 6), AllDepths(spec, kRows), 0);
  StepDriver driver(backend);
  driver.sampling.temperature = 1.2f;
  driver.sampling.top_p = 0.9f;
  std::vector<int64_t> counts(static_cast<size_t>(spec.vocab), 0);
  int64_t accepted[2] = {}, fallback = 0, gates = 0;
  std::vector<float> p;
  for (int done = 0; done < kDraws; done += kRows) {
    std::vector<std::vector<RecordedDraft>> drafts(kRows);
    for (int d = 0; d < 3; ++d) {
      driver.Begin(1);
      for (int i = 0; i < kRows; ++i) {
        driver.AddRow(i, 42, 0, d);
        ReadoutPlan& readout = driver.AddReadout(i, d);
        readout.draw = {static_cast<uint64_t>(done + i) + 1, 0, 1};
        readout.purpose = d < 2 ? ReadoutPurpose::kPropose : ReadoutPurpose::kVerify;
        readout.proposal = d;
        const auto& recorded = drafts[static_cast<size_t>(i)];
        readout.recorded_count = static_cast<int32_t>(recorded.size());
        std::copy(recorded.begin(), recorded.end(), readout.recorded);
      }
      const std::vector<Decision>& decisions = driver.Run().decisions;
      for (int i = 0; i < kRows; ++i) {
        const Decision& decision = decisions[static_cast<size_t>(i)];
        auto& recorded = drafts[static_cast<size_t>(i)];
        if (d < 2) {
          gates += d == 1 && decision.gate_open;
          if (decision.token >= 0) recorded.push_back({d, decision.token});
        } else {
          ASSERT_TRUE(decision.token >= 0 && decision.token < spec.vocab);
          ++counts[static_cast<size_t>(decision.token)];
          if (decision.accepted < 0) {
            ++fallback;
          } else {
            ++accepted[recorded[static_cast<size_t>(decision.accepted)].proposal];
          }
        }
      }
    }
    if (p.empty()) {
      p = driver.Logits(0);
      FilterScratch scratch;
      FilteredSoftmax(driver.sampling, p, scratch);
    }
  }
  // Every way to a token is taken often.
  EXPECT_GT(accepted[0], kDraws / 100);
  EXPECT_GT(accepted[1], kDraws / 1000);
  EXPECT_GT(fallback, kDraws / 1000);
  EXPECT_GT(gates, kDraws / 100);
  double statistic = 0, rare_expected = 0, rare_counted = 0;
  int bins = 0;
  for (size_t v = 0; v < p.size(); ++v) {
    const double expected = static_cast<double>(p[v]) * kDraws;
    const auto counted = static_cast<double>(counts[v]);
    if (p[v] == 0.0f) {
      EXPECT_EQ(counts[v], 0) << "token " << v << " has probability zero";
    } else if (expected < 10) {
      rare_expected += expected;
      rare_counted += counted;
    } else {
      statistic += (counted - expected) * (counted - expected) / expected;
      ++bins;
    }
  }
  if (rare_expected >= 10) {
    statistic += (rare_counted - rare_expected) * (rare_counted - rare_expected) / rare_expected;
    ++bins;
  }
  // The quantile of chi-square that is exceeded once in a million (Wilson and Hilferty). Draws are
  // keyed, so the outcome is the same in every run on a chip.
  const double freedom = bins - 1, part = 2.0 / (9.0 * freedom);
  const double limit = freedom * std::pow(1.0 - part + 4.7534 * std::sqrt(part), 3);
  ASSERT_GT(bins, 5);
  EXPECT_LT(statistic, limit);
  std::printf("    cascade: chi-square %.1f over %d bins (limit %.1f), %.1f + %.1f %% accepted\n",
              statistic, bins, limit, 100.0 * static_cast<double>(accepted[0]) / kDraws,
              100.0 * static_cast<double>(accepted[1]) / kDraws);
}

}  // namespace
}  // namespace loopspec

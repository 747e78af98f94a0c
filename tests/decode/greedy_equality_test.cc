// The promise, on real models: LoopSpec writes what autoregressive decoding writes, and the logits
// that verify each token are the same bits. Coupled sampling likewise; cascade sampling is the same
// text at every row budget and as likely as plain samples.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "engine/generate.h"
#include "tests/support/driver.h"
#include "tests/support/models.h"

namespace loopspec {
namespace {

constexpr int kBudgets[] = {1, 2, 5, 0};

// What one request gave: the tokens, and for each a hash of the logits that decided it.
struct Written {
  std::vector<int32_t> tokens;
  std::vector<uint64_t> logits;
  DecodeStatistics statistics;
};

uint64_t Hash(std::span<const float> values) {
  uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a over words
  for (const float value : values) hash = (hash ^ std::bit_cast<uint32_t>(value)) * 0x100000001B3u;
  return hash;
}

class Subject {
 public:
  Subject(const std::string& name, int recurrence, const std::vector<std::vector<int>>& depth_sets,
          ComputeMode compute = ComputeMode::kAuto)
      : model_(LoadTestModel(name, recurrence)), prompts_(DemoPrompts(name)) {
    std::set<int> readouts = {model_.spec.recurrence};
    for (const auto& depths : depth_sets) readouts.insert(depths.begin(), depths.end());
    BackendOptions options;
    options.readout_depths.assign(readouts.begin(), readouts.end());
    options.kv_positions = 1024;
    options.compute = compute;
    options.threads = 1;  // so that tests side by side do not wait for each other
    backend_ = MakeTestBackend(model_, options);
    generator_ = std::make_unique<Generator>(*backend_);
  }

  Written Run(const DecodeRequest& request) {
    Written written;
    std::vector<float> logits(static_cast<size_t>(model_.spec.vocab));
    generator_->set_step_observer([&](const StepPlan& plan, const StepResult&) {
      for (size_t i = 0; i < plan.readouts.size(); ++i) {
        if (plan.readouts[i].purpose != ReadoutPurpose::kVerify) continue;
        backend_->ReadLogits(static_cast<int>(i), logits);
        written.logits.push_back(Hash(logits));
      }
    });
    const GenerateResult result = generator_->Run(request);
    generator_->set_step_observer({});
    for (const CommittedToken& token : result.tokens) written.tokens.push_back(token.token);
    written.statistics = result.statistics;
    return written;
  }

  DecodeRequest Request(size_t prompt, int max_tokens) const {
    DecodeRequest request;
    request.prompt = prompts_[prompt % prompts_.size()];
    request.max_tokens = max_tokens;
    return request;
  }

  Generator& generator() { return *generator_; }

 private:
  Model model_;
  std::vector<std::vector<int32_t>> prompts_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Generator> generator_;
};

struct ModelCase {
  const char* name;
  int recurrence;
  std::vector<std::vector<int>> depth_sets;  // k = 1, 2, 3; multiples and not
};

const ModelCase kOuro = {"ouro-demo", 0, {{1}, {2}, {3}, {1, 2}, {1, 3}, {2, 3}, {1, 2, 3}}};
const ModelCase kOuroDeeper = {
    "ouro-demo", 7, {{2}, {5}, {2, 4}, {2, 5}, {3, 6}, {1, 2, 4}, {2, 3, 5}}};
const ModelCase kRaven = {"raven-demo",
                          32,
                          {{2},
                           {4},
                           {5},
                           {31},
                           {1, 2},
                           {2, 8},
                           {2, 10},
                           {3, 7},
                           {4, 8},
                           {2, 8, 16},
                           {1, 2, 4},
                           {3, 10, 20}}};

// Depth sets times budgets, `tokens` each (all budgets, or one in turn); the same tokens and bits
// as without proposals.
void ExpectEqual(const ModelCase& which, const std::function<void(DecodeRequest&, size_t)>& shape,
                 int tokens, bool every_budget, ComputeMode compute = ComputeMode::kAuto) {
  Subject subject(which.name, which.recurrence, which.depth_sets, compute);
  int64_t compared = 0, steps = 0, expected_steps = 0;
  for (size_t d = 0; d < which.depth_sets.size(); ++d) {
    for (size_t b = 0; b < std::size(kBudgets); ++b) {
      if (!every_budget && b != d % std::size(kBudgets)) continue;
      const size_t variant = every_budget ? b : 0;
      DecodeRequest request = subject.Request(every_budget ? b : d, tokens);
      shape(request, variant);
      const Written plain = subject.Run(request);
      request.depths = which.depth_sets[d];
      request.max_rows = kBudgets[b];
      const Written ours = subject.Run(request);
      const std::string where =
          fmt::format("{} depths {} rows {}", which.name, request.depths, request.max_rows);
      ASSERT_EQ(ours.tokens, plain.tokens) << where;
      ASSERT_EQ(ours.logits, plain.logits) << where << ": other bits behind the same tokens";
      ASSERT_EQ(ours.logits.size(), ours.tokens.size()) << where;
      compared += static_cast<int64_t>(ours.tokens.size());
      steps += ours.statistics.steps;
      expected_steps += plain.statistics.steps;
    }
  }
  EXPECT_LT(steps, expected_steps) << "nothing was ever accepted";
  std::printf("%s: %lld tokens compared, %.2f times fewer recurrences\n", which.name,
              static_cast<long long>(compared),
              static_cast<double>(expected_steps) / static_cast<double>(steps));
}

void Greedy(DecodeRequest&, size_t) {}

void Penalised(DecodeRequest& request, size_t) {
  request.sampling.repetition_penalty = 1.2f;
  request.sampling.presence_penalty = 0.3f;
  request.sampling.frequency_penalty = 0.2f;
  request.sampling.bias = {{10, 2.0f}, {300, -4.0f}, {17, 1.0f}};
}

void Coupled(DecodeRequest& request, size_t variant) {
  constexpr float kTemperatures[] = {0.7f, 1.0f, 1.5f, 0.3f};
  request.sampling.sampler = Sampler::kCoupled;
  request.sampling.temperature = kTemperatures[variant];
  request.seed = 1000 + variant;
}

void CoupledFiltered(DecodeRequest& request, size_t variant) {
  Coupled(request, variant);
  Penalised(request, variant);
  request.sampling.top_k = 40;
  request.sampling.top_p = 0.9f;
  request.sampling.min_p = 0.01f;
}

TEST(GreedyEquality, Ouro) {
  ExpectEqual(kOuro, Greedy, 40, false);
}
TEST(GreedyEquality, OuroDeeper) {
  ExpectEqual(kOuroDeeper, Greedy, 30, false);
}
TEST(GreedyEquality, OuroFloat32) {
  ExpectEqual(kOuro, Greedy, 24, false, ComputeMode::kF32);
}
TEST(GreedyEquality, Raven) {
  ExpectEqual(kRaven, Greedy, 24, false);
}
TEST(GreedyEquality, RavenFloat32) {
  ExpectEqual({"raven-demo", 8, {{2}, {2, 4}, {1, 2, 4}, {3, 5}}}, Greedy, 20, false,
              ComputeMode::kF32);
}
TEST(GreedyEquality, PenaltiesAndBias) {
  ExpectEqual(kOuro, Penalised, 30, false);
}
TEST(CoupledEquality, Ouro) {
  ExpectEqual({"ouro-demo", 0, {{1}, {1, 2}, {2, 3}, {1, 2, 3}}}, Coupled, 24, true);
}
TEST(CoupledEquality, OuroFiltered) {
  ExpectEqual({"ouro-demo", 0, {{1, 2}, {1, 2, 3}}}, CoupledFiltered, 24, true);
}
TEST(CoupledEquality, Raven) {
  ExpectEqual({"raven-demo", 16, {{2, 4}, {3, 5}}}, Coupled, 16, true);
}

// Ten thousand tokens for each model and more.
TEST(GreedyEqualityLong, Ouro) {
  ExpectEqual(kOuro, Greedy, 380, true);
}
TEST(GreedyEqualityLong, OuroDeeper) {
  ExpectEqual(kOuroDeeper, Greedy, 380, true);
}
TEST(GreedyEqualityLong, Raven) {
  ExpectEqual(kRaven, Greedy, 215, true);
}
TEST(GreedyEqualityLong, PenaltiesAndBias) {
  ExpectEqual(kOuro, Penalised, 200, true);
}
TEST(CoupledEqualityLong, Ouro) {
  ExpectEqual(kOuro, Coupled, 360, true);
}
TEST(CoupledEqualityLong, OuroFiltered) {
  ExpectEqual(kOuroDeeper, CoupledFiltered, 200, true);
}
TEST(CoupledEqualityLong, Raven) {
  ExpectEqual(kRaven, Coupled, 100, true);
}

// ---- Cascade sampling ----

void SameAtEveryBudget(const ModelCase& which, int tokens) {
  Subject subject(which.name, which.recurrence, which.depth_sets);
  for (size_t d = 0; d < which.depth_sets.size(); ++d) {
    DecodeRequest request = subject.Request(d, tokens);
    request.sampling.temperature = 1.0f;
    request.sampling.top_p = d % 2 == 0 ? 1.0f : 0.7f;
    request.sampling.later = static_cast<LaterProposal>(d % 3);
    request.seed = 7 + d;
    request.depths = which.depth_sets[d];
    Written first;
    for (const int budget : kBudgets) {
      request.max_rows = budget;
      const Written written = subject.Run(request);
      if (first.tokens.empty()) first = written;
      ASSERT_EQ(written.tokens, first.tokens)
          << fmt::format("{} depths {} rows {}", which.name, request.depths, budget);
      ASSERT_EQ(written.logits, first.logits);
      ASSERT_EQ(written.statistics.accepted, first.statistics.accepted);
    }
  }
}

TEST(CascadeSampling, SameTextAtEveryBudget) {
  SameAtEveryBudget({"ouro-demo", 0, {{1, 2}, {2}, {1, 2, 3}}}, 24);
  SameAtEveryBudget({"raven-demo", 16, {{2, 4}, {3, 5}}}, 16);
}
TEST(CascadeSamplingLong, SameTextAtEveryBudget) {
  SameAtEveryBudget(kOuro, 150);
  SameAtEveryBudget(kRaven, 60);
}

// Mean log-probability under the model of what was sampled, over many seeds, with its standard
// error.
struct Likelihood {
  double mean, error;
};

Likelihood MeanLogprob(Subject& subject, const std::vector<int>& depths, LaterProposal later,
                       int texts, int tokens, uint64_t seed) {
  double sum = 0, squares = 0;
  for (int i = 0; i < texts; ++i) {
    DecodeRequest request = subject.Request(static_cast<size_t>(i), tokens);
    request.sampling.temperature = 1.0f;
    request.sampling.later = later;
    request.seed = seed + static_cast<uint64_t>(i);
    request.depths = depths;
    request.logprobs = 0;
    const GenerateResult result = subject.generator().Run(request);
    double text = 0;
    for (const CommittedToken& token : result.tokens) text += static_cast<double>(token.logprob);
    text /= static_cast<double>(result.tokens.size());
    sum += text;
    squares += text * text;
  }
  const double mean = sum / texts;
  return {mean, std::sqrt((squares / texts - mean * mean) / (texts - 1))};
}

void ExpectSameLikelihood(int texts, int tokens, std::initializer_list<LaterProposal> variants) {
  Subject subject("ouro-demo", 0, {{1, 2}});
  const Likelihood plain =
      MeanLogprob(subject, {}, LaterProposal::kGatedResidual, texts, tokens, 1);
  for (const LaterProposal later : variants) {
    const Likelihood ours = MeanLogprob(subject, {1, 2}, later, texts, tokens, 100000);
    const double noise = std::hypot(plain.error, ours.error);
    EXPECT_LT(std::fabs(ours.mean - plain.mean), 4 * noise)
        << fmt::format("{} +- {} against {} +- {}", ours.mean, ours.error, plain.mean, plain.error);
    std::printf("mean log-probability %.4f +- %.4f, autoregressive %.4f +- %.4f\n", ours.mean,
                ours.error, plain.mean, plain.error);
  }
}

TEST(CascadeSampling, AsLikelyAsPlainSamples) {
  ExpectSameLikelihood(40, 24, {LaterProposal::kGatedResidual});
}
TEST(CascadeSamplingLong, AsLikelyAsPlainSamples) {
  ExpectSameLikelihood(
      400, 48,
      {LaterProposal::kGatedResidual, LaterProposal::kResidual, LaterProposal::kNonResidual});
}

}  // namespace
}  // namespace loopspec

// The team of threads may have another size in every step and every piece of a prompt: no bit of a
// result depends on it.
#include <gtest/gtest.h>

#include <cstring>

#include "backends/cpu/cpu_backend.h"
#include "tests/support/models.h"
#include "tests/support/run_request.h"

namespace loopspec {
namespace {

constexpr int kThreads = 4;

// Takes the next number of members before every call.
class ChangingTeam : public cpu::CpuBackend {
 public:
  ChangingTeam(const Model& model, const BackendOptions& options, std::vector<int> teams)
      : CpuBackend(model, options), teams_(std::move(teams)) {}

  Ticket SubmitPrefill(std::span<const PrefillPlan> parts) override {
    Change();
    return CpuBackend::SubmitPrefill(parts);
  }
  Ticket Submit(const StepPlan& plan) override {
    Change();
    return CpuBackend::Submit(plan);
  }

 private:
  void Change() { pool().FixTeam(teams_[calls_++ % teams_.size()]); }

  std::vector<int> teams_;
  size_t calls_ = 0;
};

struct Written {
  std::vector<int32_t> tokens;
  std::vector<uint32_t> logits;  // the bits behind every token, and those of the drafts
  bool operator==(const Written&) const = default;
};

// LoopSpec, or with no depths autoregressive decoding, which does all recurrences in one step.
Written Write(const Model& model, ComputeMode compute, const std::vector<int>& depths,
              const std::vector<int>& teams) {
  BackendOptions options;
  options.readout_depths = {1, 2, model.spec.recurrence};
  options.compute = compute;
  options.threads = kThreads;
  options.kv_positions = 256;
  ChangingTeam backend(model, options, teams);
  Scheduler scheduler(backend, OneAtATime());
  Written written;
  std::vector<float> logits(static_cast<size_t>(model.spec.vocab));
  ResolvedRequest request;
  request.laboratory.after_step = [&](const StepPlan& plan, const StepResult&) {
    for (size_t i = 0; i < plan.readouts.size(); ++i) {
      backend.ReadLogits(static_cast<int>(i), logits);
      const size_t end = written.logits.size();
      written.logits.resize(end + logits.size());
      std::memcpy(&written.logits[end], logits.data(), logits.size() * sizeof(float));
    }
  };
  request.prompt = RandomTokens(model.spec, 100, 3);
  request.max_tokens = 12;
  request.depths = depths;
  for (const Token& token : RunRequest(scheduler, request).tokens)
    written.tokens.push_back(token.id);
  return written;
}

class ChangingTeamTest : public testing::TestWithParam<const char*> {};

TEST_P(ChangingTeamTest, SameBits) {
  const Model model = LoadTestModel(GetParam());
  const std::vector<std::vector<int>> team_lists = {{4}, {2, 1}, {1, 2, 3, 4}, {4, 1, 3, 1, 2}};
  for (const ComputeMode compute : {ComputeMode::kF32, ComputeMode::kBF16}) {
    for (const std::vector<int>& depths : {std::vector<int>{1, 2}, std::vector<int>{}}) {
      const Written expected = Write(model, compute, depths, {1});
      EXPECT_EQ(expected.tokens.size(), 12u);
      EXPECT_FALSE(expected.logits.empty());
      for (const std::vector<int>& teams : team_lists) {
        EXPECT_TRUE(Write(model, compute, depths, teams) == expected)
            << "team sizes " << testing::PrintToString(teams);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ChangingTeamTest,
                         testing::Values("ouro-tiny-f32", "ouro-tiny-gqa-bf16-sharded",
                                         "raven-llama-tiny-f32", "raven-olmo-tiny-bf16"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace loopspec

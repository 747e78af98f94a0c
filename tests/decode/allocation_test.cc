// Once warm, a step of decoding allocates nothing: operator new is counted.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/counted_new.h"
#include "tests/support/driver.h"
#include "tests/support/models.h"
#include "tests/support/run_request.h"

namespace loopspec {
namespace {

TEST(Allocation, TheCounterCounts) {
  const int64_t before = counted_allocations, bytes = held_bytes, blocks = held_blocks;
  auto something = std::make_unique<std::vector<int>>(100);
  EXPECT_EQ(counted_allocations - before, 2);
  EXPECT_EQ(held_blocks - blocks, 2);
  EXPECT_EQ(held_bytes - bytes, static_cast<int64_t>(sizeof(*something) + 100 * sizeof(int)));
  EXPECT_EQ(something->size(), 100u);
  something.reset();
  EXPECT_EQ(counted_allocations - before, 2);
  EXPECT_EQ(held_blocks - blocks, 0);
  EXPECT_EQ(held_bytes - bytes, 0);
}

// Allocations in steps after the first `warm` ones.
void ExpectNone(Scheduler& scheduler, ResolvedRequest request, int warm, const char* what) {
  int64_t steps = 0, baseline = 0, worst = 0, last = 0;
  request.laboratory.after_step = [&](const StepPlan&, const StepResult&) {
    const int64_t now = counted_allocations.load();
    if (steps == warm) baseline = last = now;
    if (steps > warm) worst = std::max(worst, now - last);
    last = now;
    ++steps;
  };
  RunRequest(scheduler, request);
  EXPECT_GT(steps, warm + 100) << what;
  EXPECT_EQ(last - baseline, 0) << what << ": at most " << worst << " in a step";
}

struct SteadyCase {
  const char* model;
  const char* plan = nullptr;  // of keys
};
class SteadyState : public testing::TestWithParam<SteadyCase> {};

TEST_P(SteadyState, DecodingAllocatesNothing) {
  const std::string name = GetParam().model;
  const Model model = LoadTestModel(name, name == "raven-demo" ? 4 : 0);
  BackendOptions options;
  options.readout_depths = {1, 2, model.spec.recurrence};
  options.kv_positions = 1024;
  options.threads = 1;
  if (GetParam().plan != nullptr) {
    options.kv_type = KvType::kLoops;
    options.key_plan = SpannedKeyPlan::Parse(GetParam().plan, model.spec.recurrence);
  }
  const auto backend = MakeTestBackend(model, options);
  Scheduler scheduler(*backend, OneAtATime());
  ResolvedRequest request;
  request.prompt = DemoPrompts(name)[0];
  request.max_tokens = 160;
  constexpr int kWarm = 20;
  ExpectNone(scheduler, request, kWarm, "autoregressive");
  request.depths = {1, 2};
  ExpectNone(scheduler, request, kWarm, "greedy");
  request.sampling.temperature = 1.0f;
  ExpectNone(scheduler, request, kWarm, "cascade");
  request.sampling.top_p = 0.9f;
  request.sampling.top_k = 50;
  request.sampling.min_p = 0.01f;
  ExpectNone(scheduler, request, kWarm, "cascade, filtered");
  request.sampling.sampler = Sampler::kCoupled;
  ExpectNone(scheduler, request, kWarm, "coupled");
  // With penalties each readout has a list of counts: a new one when a step has more readouts than
  // any before.
  request.sampling.repetition_penalty = 1.1f;
  request.max_rows = 4;
  ExpectNone(scheduler, request, kWarm, "with penalties");
}

INSTANTIATE_TEST_SUITE_P(All, SteadyState,
                         testing::Values(SteadyCase{"ouro-demo"}, SteadyCase{"raven-demo"},
                                         SteadyCase{"ouro-demo", "r6,r4,last"}),
                         [](const auto& param) {
                           return std::string(param.param.plan != nullptr ? "ByPlan" : "") +
                                  (std::string(param.param.model) == "ouro-demo" ? "Ouro"
                                                                                 : "Raven");
                         });

}  // namespace
}  // namespace loopspec

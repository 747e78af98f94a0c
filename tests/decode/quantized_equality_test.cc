// Losslessness within a precision: with weights of 8 and 4 bits, and with int8 keys and values,
// LoopSpec writes what autoregressive decoding of the same model writes, and the logits behind each
// token are the same bits.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <set>

#include "base/check.h"
#include "tests/support/driver.h"
#include "tests/support/quantized_model.h"
#include "tests/support/run_request.h"
#include "tests/support/verdicts.h"

namespace loopspec {
namespace {

struct Precision {
  const char* model;
  int bits;  // of the weights; 16: as they are
  KvType kv;
  std::vector<std::vector<int>> depth_sets;
  ComputeMode compute = ComputeMode::kAuto;
  const char* plan = nullptr;  // of keys
};

std::string PrecisionName(const Precision& p) {
  std::string name =
      fmt::format("{}_w{}_{}{}", p.model, p.bits, p.kv == KvType::kInt8 ? "kv8" : "kv16",
                  p.compute == ComputeMode::kF32 ? "_f32" : "");
  if (p.plan != nullptr) name = fmt::format("{}_w{}_{}", p.model, p.bits, p.plan);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

const std::vector<std::vector<int>> kOuroDepths = {{1}, {1, 2}, {2, 3}, {1, 2, 3}};
const std::vector<std::vector<int>> kRavenDepths = {{4}, {2, 8}, {4, 8}, {3, 10, 20}};

struct Written {
  std::vector<int32_t> tokens;
  std::vector<uint32_t> logits;
  int64_t steps = 0;
};

class QuantizedEquality : public testing::TestWithParam<Precision> {
 protected:
  void Load(int threads, int64_t positions = 1024) {
    const Precision& p = GetParam();
    model_ = std::make_unique<Model>(p.bits == 16 ? LoadTestModel(p.model)
                                                  : Model::Load(QuantizedFolder(p.model, p.bits)));
    std::set<int> readouts = {model_->spec.recurrence};
    for (const auto& depths : p.depth_sets) readouts.insert(depths.begin(), depths.end());
    BackendOptions options;
    options.readout_depths.assign(readouts.begin(), readouts.end());
    options.kv_positions = positions;
    options.compute = p.compute;
    options.kv_type = p.kv;
    if (p.plan != nullptr) KeepByPlan(options);
    options.threads = threads;
    backend_ = MakeTestBackend(*model_, options);
    scheduler_ = std::make_unique<Scheduler>(*backend_, OneAtATime());
  }

  // As bytes: with windows for two texts, and others take theirs from the positions.
  void KeepByPlan(BackendOptions& options) const {
    const ModelSpec& spec = model_->spec;
    options.key_plan = SpannedKeyPlan::Parse(GetParam().plan, spec.recurrence);
    const KeptPlanes kept(spec, static_cast<int>(options.readout_depths.size()), options.key_plan);
    const int64_t page = kept.BytesPerPosition(spec.kv_heads * 2 * (spec.head_dim + 4)) * kPageSize;
    options.kv_memory = page * (PagesFor(options.kv_positions) + 2 * kept.window_pages());
  }

  Written Run(ResolvedRequest request) {
    std::vector<float> logits(static_cast<size_t>(model_->spec.vocab));
    std::vector<std::vector<uint32_t>> recorded;
    VerdictLog log;
    request.laboratory.after_step = [&](const StepPlan& plan, const StepResult&) {
      log.Step(plan, [&](int readout) {
        backend_->ReadLogits(readout, logits);
        recorded.emplace_back(logits.size());
        std::memcpy(recorded.back().data(), logits.data(), logits.size() * sizeof(float));
      });
    };
    const Choice result = RunRequest(*scheduler_, request);
    Written written;
    std::vector<int32_t> text = request.prompt;
    for (const Token& token : result.tokens) written.tokens.push_back(token.id);
    text.insert(text.end(), written.tokens.begin(), written.tokens.end());
    for (const int number : log.Committed(text, request.prompt.size())) {
      LOOPSPEC_CHECK(number >= 0);
      const auto& bits = recorded[static_cast<size_t>(number)];
      written.logits.insert(written.logits.end(), bits.begin(), bits.end());
    }
    written.steps = result.statistics.recurrences;
    return written;
  }

  // By a plan of keys prompts are so long that it matters, and end at any place in a span.
  std::vector<std::vector<int32_t>> Prompts() const {
    std::vector<std::vector<int32_t>> texts = DemoPrompts(GetParam().model);
    if (GetParam().plan == nullptr) return texts;
    std::vector<int32_t> before;
    for (const auto& text : texts) before.insert(before.end(), text.begin(), text.end());
    while (before.size() < 140) before.insert(before.end(), before.begin(), before.end());
    for (size_t i = 0; i < texts.size(); ++i)
      texts[i].insert(texts[i].begin(), before.begin(), before.begin() + 100 + 9 * (i % 5));
    return texts;
  }

  // Greedy and coupled; all sets of depths; budgets, groups and early children, drawn as they come.
  void ExpectEqual(size_t prompts, int tokens) {
    const auto texts = Prompts();
    int64_t plain_steps = 0, steps = 0, compared = 0;
    constexpr int kBudgets[] = {0, 1, 2, 5};
    size_t round = 0;
    for (size_t p = 0; p < prompts; ++p) {
      for (const bool coupled : {false, true}) {
        ResolvedRequest request;
        request.prompt = texts[p % texts.size()];
        request.max_tokens = tokens;
        if (coupled) {
          request.sampling.sampler = Sampler::kCoupled;
          request.sampling.temperature = 0.8f;
          request.sampling.top_p = 0.95f;
          request.seed = 7 + p;
        }
        const Written plain = Run(request);
        for (const std::vector<int>& depths : GetParam().depth_sets) {
          request.depths = depths;
          request.max_rows = kBudgets[round % std::size(kBudgets)];
          request.group = static_cast<int>(round % 3);
          request.guesses = round % 5 < 2;
          ++round;
          const Written ours = Run(request);
          const std::string where =
              fmt::format("prompt {} depths {} coupled {} rows {} group {} early {}", p, depths,
                          coupled, request.max_rows, request.group, request.guesses);
          ASSERT_EQ(ours.tokens, plain.tokens) << where;
          ASSERT_TRUE(ours.logits == plain.logits)
              << "other bits behind the same tokens: " << where;
          steps += ours.steps;
          plain_steps += plain.steps;
          compared += std::ssize(ours.tokens);
        }
      }
    }
    EXPECT_LT(steps, plain_steps) << "nothing was ever accepted";
    std::printf("%s: %lld tokens equal, %.2f times fewer recurrences\n",
                PrecisionName(GetParam()).c_str(), static_cast<long long>(compared),
                static_cast<double>(plain_steps) / static_cast<double>(steps));
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_P(QuantizedEquality, LoopSpecIsAutoregressive) {
  Load(1);
  ExpectEqual(1, 12);
}

// A prompt's keys have the bits that decoding would give: the same logits whatever part of the text
// was prefilled.
TEST_P(QuantizedEquality, PrefillIsDecoding) {
  Load(1);
  ResolvedRequest request;
  request.prompt = Prompts()[0];
  request.max_tokens = 9;
  const Written all = Run(request);
  for (const size_t more : {1, 4}) {
    ResolvedRequest later = request;
    later.prompt.insert(later.prompt.end(), all.tokens.begin(),
                        all.tokens.begin() + static_cast<int64_t>(more));
    later.max_tokens = static_cast<int>(9 - more);
    const Written rest = Run(later);
    ASSERT_EQ(rest.tokens, std::vector<int32_t>(all.tokens.begin() + static_cast<int64_t>(more),
                                                all.tokens.end()));
    const auto from = static_cast<int64_t>(more) * model_->spec.vocab;
    ASSERT_TRUE(rest.logits == std::vector<uint32_t>(all.logits.begin() + from, all.logits.end()));
  }
}

std::vector<int32_t> TokensOf(TokenStream& stream, int& preemptions) {
  std::vector<int32_t> tokens;
  StreamEvent event;
  while (IsEvent(stream.Next(event, std::chrono::milliseconds(0)))) {
    if (event.status == Stream::Status::kToken) tokens.push_back(event.token.id);
    if (event.status == Stream::Status::kEnd) preemptions += stream.statistics(0).preemptions;
  }
  return tokens;
}

// Many requests in few pages: they share steps and prefixes, are preempted, swapped out and back
// in, and each writes what it writes alone.
TEST_P(QuantizedEquality, ManyAtOnce) {
  std::vector<ResolvedRequest> requests;
  const auto texts = Prompts();
  int most = 0;  // pages of one request
  for (size_t i = 0; i < 4; ++i) {
    ResolvedRequest request;
    request.prompt = texts[i % 2 == 0 ? 0 : i % texts.size()];
    request.max_tokens = 70 - static_cast<int>(i);
    if (i % 2 == 0) request.depths = GetParam().depth_sets[i / 2 % GetParam().depth_sets.size()];
    most = std::max(most, PagesFor(std::ssize(request.prompt) + request.max_tokens));
    requests.push_back(request);
  }
  // Two may begin, and cannot both be written to their ends.
  Load(1, int64_t{GetParam().plan != nullptr ? 2 * most - 2 : most + 1} * kPageSize);
  std::vector<std::vector<int32_t>> alone;
  for (ResolvedRequest request : requests) {
    request.depths.clear();
    alone.push_back(Run(request).tokens);
  }
  Scheduler together(*backend_, {});
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (const ResolvedRequest& request : requests) streams.push_back(together.Submit(request));
  int turns = 0, preemptions = 0;
  while (together.Step()) ASSERT_LT(++turns, 100000);
  for (size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(TokensOf(*streams[i], preemptions), alone[i]) << "request " << i;
  EXPECT_GT(preemptions, 0);
}

class QuantizedEqualityLong : public QuantizedEquality {};
TEST_P(QuantizedEqualityLong, ManyTokens) {
  Load(2);
  ExpectEqual(5, 150);
}

// By plans of keys: texts of several hundred tokens, over spans and their windows, each alone with
// all depths, groups, budgets and early children, and then many at once in too few pages, with
// prompts in chunks of any size, on prefixes that others left.
class KeyPlanEqualityLong : public QuantizedEquality {
 protected:
  static constexpr int kPrompts = 5;
  static constexpr int kTokens = 512;

  // What is written alone, without drafts. Every second text is coupled.
  void WriteAlone() {
    const auto texts = Prompts();
    for (size_t i = 0; i < 2 * kPrompts; ++i) {
      ResolvedRequest request;
      request.prompt = texts[i / 2 % texts.size()];
      request.max_tokens = kTokens;
      if (i % 2 == 1) {
        request.sampling.sampler = Sampler::kCoupled;
        request.sampling.temperature = 0.8f;
        request.seed = 70 + i;
      }
      requests_.push_back(request);
      alone_.push_back(Run(request).tokens);
    }
  }

  // One of the texts; of the greedy ones mostly the rest, after some of the answer.
  struct Part {
    ResolvedRequest request;
    std::vector<int32_t> expected;
  };
  Part PartOf(size_t i, size_t round) const {
    Part part = {requests_[i], alone_[i]};
    if (i % 2 == 0) {
      const auto known = static_cast<int64_t>((round * 61 + i * 29) % 300);
      part.request.prompt.insert(part.request.prompt.end(), part.expected.begin(),
                                 part.expected.begin() + known);
      part.expected.erase(part.expected.begin(), part.expected.begin() + known);
      part.request.max_tokens -= static_cast<int>(known);
    }
    const auto& sets = GetParam().depth_sets;
    if ((i + round) % 5 > 0) part.request.depths = sets[(i + round) % sets.size()];
    part.request.group = static_cast<int>((i + round) % 3);
    part.request.guesses = (i + round) % 2 == 0;
    return part;
  }

  // How many tokens were equal; 0 where one was not.
  int64_t RunTogether(const SchedulerOptions& options, size_t round) {
    Scheduler together(*backend_, options);
    std::vector<Part> parts;
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (size_t i = 0; i < requests_.size(); ++i) {
      parts.push_back(PartOf(i, round));
      streams.push_back(together.Submit(parts.back().request));
    }
    while (together.Step()) continue;
    int64_t equal = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const std::vector<int32_t> tokens = TokensOf(*streams[i], preemptions_);
      EXPECT_EQ(tokens, parts[i].expected) << "text " << i << ", round " << round;
      if (tokens != parts[i].expected) return 0;
      equal += std::ssize(tokens);
      hits_ += streams[i]->statistics(0).cached_tokens > 0 ? 1 : 0;
    }
    return equal;
  }

  std::vector<ResolvedRequest> requests_;
  std::vector<std::vector<int32_t>> alone_;
  int preemptions_ = 0, hits_ = 0;
};

// One thread each: they run beside each other and beside whatever else the machine does.
TEST_P(KeyPlanEqualityLong, AloneAtAllDepths) {
  Load(1);
  ExpectEqual(kPrompts, kTokens);
}

TEST_P(KeyPlanEqualityLong, TogetherInChunksFromTheCacheAndSwapped) {
  // Some may begin, and cannot all be written to their ends.
  Load(1, 2048);
  WriteAlone();
  int64_t equal = 0;
  size_t round = 0;
  for (const int chunk : {0, 48, 64, 200, 1000}) {
    SchedulerOptions options;
    options.prefill_chunk = chunk;
    options.max_running = 3 + static_cast<int>(round);
    const int64_t more = RunTogether(options, round++);
    ASSERT_GT(more, 0) << "chunks of " << chunk;
    equal += more;
  }
  EXPECT_GT(preemptions_, 0);
  EXPECT_GT(hits_, 0);
  std::printf("%s: %lld tokens equal, %d preemptions, %d hits\n", PrecisionName(GetParam()).c_str(),
              static_cast<long long>(equal), preemptions_, hits_);
}

const Precision kPlans[] = {
    {"ouro-demo", 16, KvType::kLoops, kOuroDepths, ComputeMode::kAuto, "int8,r5,r4"},
    {"ouro-demo", 16, KvType::kLoops, kOuroDepths, ComputeMode::kAuto, "int8*2,last@128"},
    {"raven-demo", 16, KvType::kLoops, kRavenDepths, ComputeMode::kAuto, "int8*8,last"},
    {"raven-demo", 16, KvType::kLoops, kRavenDepths, ComputeMode::kAuto, "int8*4,r4*4,last@128"},
};
INSTANTIATE_TEST_SUITE_P(All, KeyPlanEqualityLong, testing::ValuesIn(kPlans),
                         [](const auto& param) { return PrecisionName(param.param); });

const Precision kPrecisions[] = {
    {"ouro-demo", 8, KvType::kCompute, kOuroDepths},
    {"ouro-demo", 4, KvType::kCompute, kOuroDepths},
    {"ouro-demo", 16, KvType::kInt8, kOuroDepths},
    {"ouro-demo", 8, KvType::kInt8, kOuroDepths, ComputeMode::kF32},
    {"raven-demo", 8, KvType::kCompute, kRavenDepths},
    {"raven-demo", 4, KvType::kInt8, kRavenDepths},
    {"ouro-demo", 16, KvType::kLoops, kOuroDepths, ComputeMode::kAuto, "int8*2,last"},
    {"ouro-demo", 16, KvType::kLoops, kOuroDepths, ComputeMode::kAuto, "int8,r5,r4"},
    {"ouro-demo", 8, KvType::kLoops, kOuroDepths, ComputeMode::kF32, "r6,r3,last"},
    {"raven-demo", 16, KvType::kLoops, kRavenDepths, ComputeMode::kAuto, "int8*8,last"},
};
INSTANTIATE_TEST_SUITE_P(All, QuantizedEquality, testing::ValuesIn(kPrecisions),
                         [](const auto& param) { return PrecisionName(param.param); });
INSTANTIATE_TEST_SUITE_P(All, QuantizedEqualityLong, testing::ValuesIn(kPrecisions),
                         [](const auto& param) { return PrecisionName(param.param); });

}  // namespace
}  // namespace loopspec

// The scheduler over the demo models: under load everybody gets, bit for bit, what it gets alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/load/generation_defaults.h"
#include "engine/schedule/scheduler.h"
#include "tests/support/driver.h"
#include "tests/support/models.h"
#include "tests/support/run_request.h"
#include "tests/support/sanitized.h"

namespace loopspec {
namespace {

BackendOptions Options(const Model& model, int64_t positions, int cells = 128) {
  BackendOptions options;
  const int r = model.spec.recurrence;
  options.readout_depths = r == 4 ? std::vector{1, 2, 4} : std::vector{2, 8, r};
  options.cells = cells;
  options.threads = 1;  // tests share the machine with others
  options.kv_positions = positions;
  return options;
}

struct Text {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  bool operator==(const Text&) const = default;
};

Text Alone(Backend& backend, const ResolvedRequest& request) {
  Scheduler scheduler(backend, OneAtATime());
  Text text;
  for (const Token& token : RunRequest(scheduler, request).tokens) {
    text.ids.push_back(token.id);
    text.logprobs.push_back(token.logprob.value());
  }
  return text;
}

// Appends what the stream has; the result once its (only) choice has ended.
void Read(TokenStream& stream, Text& text, Statistics& result) {
  StreamEvent event;
  while (IsEvent(stream.Next(event, std::chrono::milliseconds(0)))) {
    if (event.status == Stream::Status::kEnd) result = stream.statistics(0);
    if (event.status != Stream::Status::kToken) continue;
    text.ids.push_back(event.token.id);
    text.logprobs.push_back(event.token.logprob.value());
  }
}

// Greedy, coupled and cascade; short and long; some begin like others, some repeat others whole.
ResolvedRequest Request(const std::vector<std::vector<int32_t>>& prompts, const Model& model,
                        uint32_t i, int longest) {
  std::mt19937 random(i % 48);
  ResolvedRequest request;
  request.prompt = prompts[random() % prompts.size()];
  if (random() % 2 == 0) {
    const std::vector<int32_t> before = RandomTokens(model.spec, 64 * (1 + random() % 2), 7);
    request.prompt.insert(request.prompt.begin(), before.begin(), before.end());
  }
  const int r = model.spec.recurrence;
  request.depths = r == 4 ? std::vector{1, 2} : std::vector{2, 8};
  if (random() % 4 == 0) request.depths = {};
  if (random() % 4 == 0) request.guesses = true;
  request.max_tokens = 1 + static_cast<int>(random() % static_cast<uint32_t>(longest));
  request.seed = random() % 8;
  request.logprobs = 0;
  const auto kind = random() % 3;
  if (kind > 0) request.sampling.temperature = 0.8f;
  if (kind == 1) request.sampling.sampler = Sampler::kCoupled;
  request.max_rows = 8;
  return request;
}

void StreamsUnderLoad(const std::string& name, int streams_count, int longest, int64_t positions,
                      bool expect_preemptions) {
  const StreamModel loaded = LoadStreamModel(name);
  const Model& model = loaded.model;
  const auto& prompts = loaded.prompts;
  const auto alone_backend = MakeTestBackend(model, Options(model, 1024));
  const auto backend = MakeTestBackend(model, Options(model, positions));
  SchedulerOptions options;
  options.short_wait = INFINITY;  // what is preempted for the sake of time depends on the machine
  Scheduler scheduler(*backend, options);
  const auto count = static_cast<size_t>(streams_count);
  std::vector<std::shared_ptr<TokenStream>> streams;
  std::vector<Text> texts(count);
  std::vector<Statistics> results(count);
  std::vector<int> came;  // in which turn
  int turn = 0;
  std::mt19937 random(4);
  for (bool busy = true; busy || streams.size() < count;) {
    if (streams.size() < count && random() % 2 == 0) {
      const auto i = static_cast<uint32_t>(streams.size());
      streams.push_back(scheduler.Submit(Request(prompts, model, i, longest)));
      came.push_back(turn);
    }
    // Every fifth is cancelled some turns after it came.
    for (size_t i = 1; i < streams.size(); i += 5) {
      if (turn == came[i] + 4 + static_cast<int>(i)) streams[i]->Cancel();
    }
    ++turn;
    busy = scheduler.Step();
  }
  int64_t cancelled = 0, cached = 0;
  for (size_t i = 0; i < count; ++i) {
    Read(*streams[i], texts[i], results[i]);
    ASSERT_NE(results[i].finish_reason, FinishReason::kNone);
    Text alone = Alone(*alone_backend, Request(prompts, model, static_cast<uint32_t>(i), longest));
    if (results[i].finish_reason == FinishReason::kCancelled) {
      ++cancelled;
      ASSERT_LE(texts[i].ids.size(), alone.ids.size());
      alone.ids.resize(texts[i].ids.size());
      alone.logprobs.resize(texts[i].ids.size());
    }
    EXPECT_EQ(texts[i].ids, alone.ids) << name << ", request " << i;
    EXPECT_TRUE(texts[i] == alone) << name << ", request " << i;
    cached += results[i].cached_tokens;
  }
  EXPECT_GT(cancelled, 0);
  EXPECT_GT(cached, 0);
  EXPECT_EQ(scheduler.state().preemptions > 0, expect_preemptions);
  const EngineMetrics state = scheduler.state();
  EXPECT_EQ(state.pages_free + state.pages_cached, state.pages);
  EXPECT_EQ(state.cells_free, state.cells);
}

// Under a sanitizer fewer streams, and shorter texts.
TEST(Engine, OuroStreamsGetWhatEachGetsAlone) {
  StreamsUnderLoad("ouro-demo", kSanitized ? 16 : 64, kSanitized ? 4 : 16, 64 * 200, false);
}

TEST(Engine, OuroStreamsGetWhatEachGetsAloneInLittleMemory) {
  StreamsUnderLoad("ouro-demo", kSanitized ? 8 : 12, 120, 64 * 5, true);
}

TEST(Engine, RavenStreamsGetWhatEachGetsAlone) {
  StreamsUnderLoad("raven-demo", kSanitized ? 7 : 12, kSanitized ? 3 : 12, 64 * 100, false);
}

// Requests of several depths share steps, prompts and a cache, and each is the text and the
// log-probabilities of a model that has that depth alone.
void DepthsUnderLoad(const std::string& name, const std::vector<int>& recurrences) {
  const Model model = LoadTestModel(name, recurrences.back());
  BackendOptions options = Options(model, 64 * 60);
  options.readout_depths = recurrences;
  const auto backend = MakeTestBackend(model, options);
  const std::vector<int32_t> prompt = RandomTokens(model.spec, 100, 3);  // a page and more
  const auto request = [&](size_t i) {
    ResolvedRequest made;
    made.prompt = prompt;
    made.max_tokens = 12 + static_cast<int>(i);
    made.logprobs = 0;
    made.recurrence = recurrences[i % recurrences.size()];
    if (i % 2 == 0) {
      for (const int depth : recurrences) {
        if (depth < made.recurrence) made.depths.push_back(depth);
      }
    }
    if (i % 3 == 0) {
      made.sampling.temperature = 0.9f;
      made.sampling.sampler = Sampler::kCoupled;
    }
    return made;
  };
  constexpr size_t kRequests = 12;
  Scheduler scheduler(*backend);
  // One after the other: the first of a depth finds nothing of the others', the second the page of
  // the first.
  for (const int64_t hit : {0, kPageSize}) {
    for (size_t i = 0; i < recurrences.size(); ++i) {
      const auto stream = scheduler.Submit(request(i));
      while (scheduler.Step()) {
      }
      Text text;
      Statistics result;
      Read(*stream, text, result);
      EXPECT_EQ(result.cached_tokens, hit) << name << " at depth " << recurrences[i];
    }
  }
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (size_t i = 0; i < kRequests; ++i) {
    streams.push_back(scheduler.Submit(request(i)));
    for (size_t step = 0; step < 2 * i; ++step) scheduler.Step();
  }
  while (scheduler.Step()) {
  }
  int64_t cached = 0;
  for (size_t i = 0; i < kRequests; ++i) {
    Text text;
    Statistics result;
    Read(*streams[i], text, result);
    const int recurrence = recurrences[i % recurrences.size()];
    const Model shallow = LoadTestModel(name, recurrence);
    BackendOptions alone = Options(shallow, 64 * 8);
    alone.readout_depths = {recurrence};
    ResolvedRequest plain = request(i);
    plain.recurrence = 0;
    plain.depths = {};
    EXPECT_TRUE(text == Alone(*MakeTestBackend(shallow, alone), plain))
        << name << ", request " << i << " of depth " << recurrence;
    cached += result.cached_tokens;
  }
  EXPECT_GT(cached, 0);
}

TEST(Engine, RequestsOfSeveralDepthsShareSteps) {
  DepthsUnderLoad(StreamModelName("ouro-demo"), {1, 2, 4});
  DepthsUnderLoad(StreamModelName("raven-demo"), {2, 5, 16});
  DepthsUnderLoad("nanbeige-tiny-f32", {1, 2});
  DepthsUnderLoad("huginn-tiny-f32", {3, 8});
}

// A prompt's scores at a depth are those of the model with that depth.
TEST(Engine, ScoresOfAPromptAreOfTheDepthAskedFor) {
  for (const int recurrence : {1, 2}) {
    std::vector<Token> scores[2];
    for (const bool shallow : {false, true}) {
      const Model model = LoadTestModel("ouro-demo", shallow ? recurrence : 0);
      BackendOptions options = Options(model, 64 * 8);
      if (shallow) options.readout_depths = {recurrence};
      const auto backend = MakeTestBackend(model, options);
      Scheduler scheduler(*backend);
      ResolvedRequest request;
      request.prompt = DemoPrompts("ouro-demo")[0];
      request.max_tokens = 0;
      request.recurrence = recurrence;
      request.prompt_logprobs = 2;
      const auto stream = scheduler.Submit(request);
      while (scheduler.Step()) {
      }
      StreamEvent event;
      while (IsEvent(stream->Next(event))) {
      }
      scores[shallow] = stream->prompt_logprobs();
    }
    ASSERT_EQ(scores[0].size(), scores[1].size());
    ASSERT_FALSE(scores[0].empty());
    for (size_t i = 0; i < scores[0].size(); ++i) {
      EXPECT_EQ(scores[0][i].logprob, scores[1][i].logprob);
      EXPECT_EQ(scores[0][i].top[0].id, scores[1][i].top[0].id);
    }
  }
}

// A scored prompt: the same numbers as decoding gives for the same tokens, and the likeliest token
// has exactly the largest of them.
TEST(Engine, ScoresOfAPromptAreThoseOfDecoding) {
  const Model model = LoadTestModel("ouro-demo");
  const auto backend = MakeTestBackend(model, Options(model, 64 * 40));
  if (!backend->prefill_equals_decode()) GTEST_SKIP() << "prompts have other bits here";
  ResolvedRequest request;
  request.prompt = DemoPrompts("ouro-demo")[0];
  const size_t prompt = request.prompt.size();
  request.max_tokens = 80;
  request.logprobs = 3;
  Scheduler scheduler(*backend);
  const auto decoded = scheduler.Submit(request);
  while (scheduler.Step()) {
  }
  std::vector<Token> tokens;
  StreamEvent event;
  while (IsEvent(decoded->Next(event))) {
    if (event.status == Stream::Status::kToken) tokens.push_back(event.token);
  }
  for (const Token& token : tokens) request.prompt.push_back(token.id);
  request.max_tokens = 0;
  request.prompt_logprobs = 3;
  const auto scored = scheduler.Submit(request);
  while (scheduler.Step()) {
  }
  std::vector<Stream::Status> kinds;
  while (IsEvent(scored->Next(event))) kinds.push_back(event.status);
  EXPECT_EQ(kinds, (std::vector{Stream::Status::kPrompt, Stream::Status::kEnd}));
  EXPECT_EQ(scored->statistics(0).finish_reason, FinishReason::kLength);
  const std::vector<Token> scores = scored->prompt_logprobs();
  ASSERT_EQ(scores.size(), request.prompt.size() - 1);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const Token& score = scores[prompt - 1 + i];
    EXPECT_EQ(score.id, tokens[i].id);
    EXPECT_EQ(score.logprob, tokens[i].logprob);
    ASSERT_EQ(score.top.size(), 3u);
    EXPECT_EQ(score.logprob, score.top[0].logprob);  // greedy
    for (size_t t = 0; t < 3; ++t) {
      EXPECT_EQ(score.top[t].id, tokens[i].top[t].id);
      EXPECT_EQ(score.top[t].logprob, tokens[i].top[t].logprob);
    }
  }
}

TEST(GenerationDefaults, AsHuggingFaceReadsThem) {
  const auto folder = std::filesystem::path(LOOPSPEC_BINARY_DIR) / "generation_defaults_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  EXPECT_FALSE(ReadGenerationDefaults(folder).from_file);
  EXPECT_TRUE(ReadGenerationDefaults(folder).sampling.greedy());
  const auto with = [&](const std::string& json) {
    std::ofstream(folder / "generation_config.json") << json;
    return ReadGenerationDefaults(folder);
  };
  // Without do_sample, greedy; penalties count all the same.
  SamplingParams s =
      with(R"({"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.1})").sampling;
  EXPECT_TRUE(s.greedy());
  EXPECT_EQ(s.top_p, 1.0f);
  EXPECT_EQ(s.repetition_penalty, 1.1f);
  EXPECT_FALSE(with(R"({"temperature": 0.7})").chosen);
  EXPECT_TRUE(with(R"({"do_sample": false})").chosen);
  s = with(R"({"do_sample": true})").sampling;
  EXPECT_EQ(s.temperature, 1.0f);
  EXPECT_EQ(s.top_k, 50);
  EXPECT_EQ(s.top_p, 1.0f);
  s = with(R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1})")
          .sampling;
  EXPECT_EQ(s.temperature, 0.6f);
  EXPECT_EQ(s.top_k, 20);
  EXPECT_EQ(s.top_p, 0.95f);
  EXPECT_EQ(s.min_p, 0.1f);
  const GenerationDefaults beams = with(R"({"num_beams": 4, "typical_p": 1.0, "min_length": 0})");
  EXPECT_EQ(beams.ignored, std::vector<std::string>{"num_beams"});
  EXPECT_THROW(with(R"({"do_sample": true, "top_p": 1.5})"), Error);
  EXPECT_THROW(with(R"({"do_sample": "yes"})"), Error);
  EXPECT_THROW(with(R"([])"), Error);
}

}  // namespace
}  // namespace loopspec

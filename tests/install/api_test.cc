// The library as a stranger uses it: the installed header, a model folder, and nothing else.
//   api_test MODEL_FOLDER
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "loopspec/loopspec.h"

namespace {

using loopspec::Engine;
using loopspec::Request;
using loopspec::Result;
using loopspec::Stream;
using loopspec::Token;

std::string folder;

loopspec::EngineOptions Options() {
  loopspec::EngineOptions options;
  options.model = folder;
  options.device = "cpu";
  options.threads = 1;
  options.depths = {{1, 2}, {1}};
  options.kv_positions = 4096;
  return options;
}

class Api : public testing::Test {
 protected:
  static void SetUpTestSuite() { engine = std::make_unique<Engine>(Options()); }
  static void TearDownTestSuite() { engine.reset(); }
  static std::unique_ptr<Engine> engine;
};
std::unique_ptr<Engine> Api::engine;

std::vector<int32_t> Ids(const std::vector<Token>& tokens) {
  std::vector<int32_t> ids;
  for (const Token& token : tokens) ids.push_back(token.id);
  return ids;
}

std::string Refusal(Engine& engine, const Request& request) {
  try {
    engine.Submit(request);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "accepted";
}

TEST_F(Api, EveryDecoderWritesTheSameText) {
  Request request{.prompt = "Once upon a time", .max_tokens = 40};
  const Result result = engine->Generate(request);
  EXPECT_EQ(result.choices[0].tokens.size(), 40u);
  EXPECT_EQ(result.statistics().finish_reason, "length");
  EXPECT_FALSE(result.text().empty());
  for (const auto decoding : {loopspec::Decoding::kAutoregressive, loopspec::Decoding::kLookup}) {
    request.decoding = decoding;
    EXPECT_EQ(engine->Generate(request).text(), result.text());
  }
  request.decoding = loopspec::Decoding::kLoopSpec;
  request.depths = std::vector{1};
  EXPECT_EQ(engine->Generate(request).text(), result.text());
  // The same as ids.
  Request ids;
  ids.tokens = engine->Encode("Once upon a time");
  ids.max_tokens = 40;
  EXPECT_EQ(engine->Generate(ids).text(), result.text());
  EXPECT_EQ(engine->Decode(Ids(result.choices[0].tokens)), result.text());
}

TEST_F(Api, MessagesGoThroughTheTemplate) {
  Request request{.messages = {{"user", "Tell me a story about a cat."}}, .max_tokens = 10};
  const std::string text = engine->Generate(request).text();
  Request json{.messages_json = R"([{"role": "user", "content": "Tell me a story about a cat."}])",
               .template_arguments = R"({"enable_thinking": false})",
               .max_tokens = 10};
  EXPECT_EQ(engine->Generate(json).text(), text);
}

TEST_F(Api, StopsWhereItIsTold) {
  Request request{.prompt = "Once upon a time", .max_tokens = 60, .ignore_eos = true};
  const std::string whole = engine->Generate(request).text();
  const std::string stop = whole.substr(whole.size() / 2, 3);
  request.stop = {stop};
  const Result result = engine->Generate(request);
  EXPECT_EQ(result.text(), whole.substr(0, whole.find(stop)));
  EXPECT_EQ(result.statistics().finish_reason, "stop");

  // A callback that has had enough is not called again.
  request.stop.clear();
  int calls = 0;
  const Result stopped = engine->Generate(request, [&](const Token&) { return ++calls < 5; });
  EXPECT_EQ(calls, 5);
  EXPECT_EQ(stopped.choices[0].tokens.size(), 5u);
  EXPECT_EQ(stopped.statistics().finish_reason, "cancelled");
}

TEST_F(Api, ChoicesAndSeeds) {
  loopspec::SamplingParams warm;
  warm.temperature = 0.9f;
  Request request{.prompt = "Once upon a time", .sampling = warm, .choices = 3, .max_tokens = 20};
  const Result random = engine->Generate(request);
  ASSERT_EQ(random.choices.size(), 3u);
  EXPECT_NE(random.choices[0].text, random.choices[1].text);
  request.seed = random.seed;
  const Result again = engine->Generate(request);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(again.choices[i].text, random.choices[i].text);
  EXPECT_NE(engine->Generate({.prompt = "Once", .max_tokens = 1}).seed,
            engine->Generate({.prompt = "Once", .max_tokens = 1}).seed);
}

TEST_F(Api, LogprobsOfAnswerAndPrompt) {
  Request request{.prompt = "Once upon a time", .max_tokens = 10, .logprobs = 2};
  const Result result = engine->Generate(request);
  for (const Token& token : result.choices[0].tokens) {
    ASSERT_EQ(token.top.size(), 2u);
    EXPECT_EQ(token.top[0].id, token.id);  // greedy
    EXPECT_EQ(token.top[0].logprob, token.logprob);
    EXPECT_LE(token.top[1].logprob, token.logprob);
  }
  // The prompt and its answer, scored and not continued.
  Request score;
  score.tokens = engine->Encode("Once upon a time");
  const size_t prompt = score.tokens.size();
  for (const Token& token : result.choices[0].tokens) score.tokens.push_back(token.id);
  score.max_tokens = 0;
  score.prompt_logprobs = 1;
  const Result scored = engine->Generate(score);
  EXPECT_TRUE(scored.choices[0].tokens.empty());
  ASSERT_EQ(scored.prompt_logprobs.size(), score.tokens.size() - 1);
  for (size_t i = prompt; i < score.tokens.size(); ++i) {
    const Token& token = scored.prompt_logprobs[i - 1];
    EXPECT_EQ(token.id, score.tokens[i]);
    EXPECT_EQ(token.logprob, token.top[0].logprob);
    EXPECT_EQ(token.logprob, result.choices[0].tokens[i - prompt].logprob);
  }
}

TEST_F(Api, ManyThreads) {
  const auto request = [](int i) {
    Request made{.prompt = i % 2 == 0 ? "Once upon a time" : "Tom had a red ball and",
                 .seed = 5,
                 .max_tokens = 5 + i};
    if (i % 3 == 0) made.sampling.emplace().temperature = 0.7f;
    return made;
  };
  std::vector<std::string> alone(12);
  for (int i = 0; i < 12; ++i) alone[static_cast<size_t>(i)] = engine->Generate(request(i)).text();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 12; ++i) {
    threads.emplace_back([&, i] {
      if (engine->Generate(request(i)).text() != alone[static_cast<size_t>(i)]) ++wrong;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(Api, StreamsAreCancelledAndOutliveTheirEngine) {
  Stream stream =
      engine->Submit({.prompt = "Once upon a time", .max_tokens = 1500, .ignore_eos = true});
  Token token;
  EXPECT_EQ(stream.Next(token), Stream::Status::kToken);
  stream.Cancel();
  while (stream.Next(token) == Stream::Status::kToken) {
  }
  EXPECT_EQ(stream.statistics().finish_reason, "cancelled");
  EXPECT_LT(stream.statistics().decoded_tokens, 1500);

  auto brief = std::make_unique<Engine>(Options());
  std::atomic<int> ready{0};
  Stream left = brief->Submit({.prompt = "Once", .max_tokens = 1500, .ignore_eos = true});
  left.OnReady([&] { ++ready; });
  EXPECT_EQ(left.Next(token, std::chrono::minutes(5)), Stream::Status::kToken);
  brief.reset();
  EXPECT_GT(ready, 0);
  while (left.Next(token) != Stream::Status::kDone) {
  }
  EXPECT_EQ(left.statistics().finish_reason, "cancelled");
}

TEST_F(Api, RefusesBadRequestsByName) {
  EXPECT_NE(Refusal(*engine, {}).find("prompt is empty"), std::string::npos);
  EXPECT_NE(Refusal(*engine, {.prompt = "a", .tokens = {1}}).find("one prompt"), std::string::npos);
  EXPECT_NE(Refusal(*engine, {.tokens = {1 << 30}}).find("vocabulary"), std::string::npos);
  EXPECT_NE(Refusal(*engine, {.prompt = "a", .max_tokens = 100000}).find("context"),
            std::string::npos);
  EXPECT_NE(Refusal(*engine, {.prompt = "a", .depths = std::vector{3}}).find("not loaded"),
            std::string::npos);
  EXPECT_NE(Refusal(*engine, {.messages_json = "[1]"}).find("messages"), std::string::npos);
  EXPECT_NE(Refusal(*engine, {.messages_json = "{"}).find("messages"), std::string::npos);
  EXPECT_NE(Refusal(*engine, {.prompt = "a", .choices = 0}).find("n is 0"), std::string::npos);
  loopspec::SamplingParams wrong;
  wrong.top_p = 2.0f;
  EXPECT_NE(Refusal(*engine, {.prompt = "a", .sampling = wrong}).find("top"), std::string::npos);

  loopspec::EngineOptions small = Options();
  small.max_running = 1;
  small.max_queued = 1;
  Engine full(small);
  EXPECT_NE(Refusal(full, {.prompt = "a", .choices = 2}).find("n is 2"), std::string::npos);
  std::vector<Stream> streams;
  const auto submit = [&] {
    for (int i = 0; i < 3; ++i)
      streams.push_back(full.Submit({.prompt = "a", .max_tokens = 1000, .ignore_eos = true}));
  };
  EXPECT_THROW(submit(), loopspec::QueueFull);
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc < 2) return 2;
  folder = argv[1];
  return RUN_ALL_TESTS();
}

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
using loopspec::FinishReason;
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

// The model's depth as a dial: each recurrence that a request may ask for is the text of the model
// loaded with that many, whatever decodes it and whoever shares its prompt.
TEST_F(Api, ARequestMayAskForFewerRecurrences) {
  Request request;
  request.prompt = "Question: Tom has 4 apples and buys 3 more.";
  while (engine->Encode(request.prompt).size() < 130) request.prompt += " Then he eats 1 of them.";
  request.sampling = loopspec::SamplingParams{};
  request.max_tokens = 24;
  request.ignore_eos = true;
  const std::vector<int> offered = engine->facts().recurrences;
  EXPECT_EQ(engine->facts().trained_recurrence, offered.back());
  ASSERT_GE(offered.size(), 3u);
  std::vector<Result> whole;
  for (const int recurrence : offered) {
    loopspec::EngineOptions options = Options();
    options.recurrence = recurrence;
    options.depths = {{}};
    Engine shallow(options);
    const Result expected = shallow.Generate(request);
    for (const auto decoding : {loopspec::Decoding::kAutoregressive, loopspec::Decoding::kLoopSpec,
                                loopspec::Decoding::kLookup}) {
      Request asked = request;
      asked.recurrence = recurrence;
      asked.decoding = decoding;
      const Result result = engine->Generate(asked);
      EXPECT_EQ(Ids(result.choices[0].tokens), Ids(expected.choices[0].tokens)) << recurrence;
      // Whole pages of the prompt come from the cache from the second text of a depth on, never
      // from another depth.
      const bool first = decoding == loopspec::Decoding::kAutoregressive;
      EXPECT_EQ(result.statistics().cached_tokens == 0, first) << recurrence;
    }
    whole.push_back(expected);
  }
  EXPECT_NE(Ids(whole.front().choices[0].tokens), Ids(whole.back().choices[0].tokens));

  Request unsuitable = request;
  unsuitable.recurrence = offered.back() + 1;
  EXPECT_NE(Refusal(*engine, unsuitable).find("the model was trained for"), std::string::npos);
  unsuitable.recurrence = 0;
  EXPECT_NE(Refusal(*engine, unsuitable).find("recurrence is 0, expected one of"),
            std::string::npos);
  unsuitable.recurrence = 1;
  unsuitable.depths = {1};
  EXPECT_NE(Refusal(*engine, unsuitable).find("expected rising numbers from 1 to 0"),
            std::string::npos);
}

TEST_F(Api, EveryDecoderWritesTheSameText) {
  Request request{.prompt = "Once upon a time", .max_tokens = 40};
  const Result result = engine->Generate(request);
  EXPECT_EQ(result.choices[0].tokens.size(), 40u);
  EXPECT_EQ(result.statistics().finish_reason, FinishReason::kLength);
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
  EXPECT_EQ(result.statistics().finish_reason, FinishReason::kStop);
  EXPECT_EQ(result.statistics().stop_string, stop);
  EXPECT_FALSE(result.statistics().stop_token.has_value());
  request.stop.clear();
  const std::vector<Token> tokens = engine->Generate(request).choices[0].tokens;
  request.stop_tokens = {tokens[9].id};
  const Result ended = engine->Generate(request);
  EXPECT_EQ(ended.statistics().stop_token, tokens[9].id);
  EXPECT_FALSE(ended.statistics().stop_string.has_value());
  EXPECT_LE(ended.choices[0].tokens.size(), 10u);
  request.stop_tokens.clear();

  // A callback that has had enough is not called again.
  request.stop.clear();
  int calls = 0;
  const Result stopped = engine->Generate(request, [&](const Token&) { return ++calls < 5; });
  EXPECT_EQ(calls, 5);
  EXPECT_EQ(stopped.choices[0].tokens.size(), 5u);
  EXPECT_EQ(stopped.statistics().finish_reason, FinishReason::kCancelled);
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
  EXPECT_EQ(stream.statistics().finish_reason, FinishReason::kCancelled);
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
  EXPECT_EQ(left.statistics().finish_reason, FinishReason::kCancelled);
}

// Without a thread of the engine's own the readers take its steps: the same text.
TEST_F(Api, ReadersMayTakeTheStepsThemselves) {
  loopspec::EngineOptions options = Options();
  options.background = false;
  Engine own(options);
  const Request story{.prompt = "Once upon a time", .seed = 1, .max_tokens = 40};
  const Request ball{.prompt = "Tom had a red ball and", .seed = 1, .max_tokens = 30};
  const std::string expected[] = {engine->Generate(story).text(), engine->Generate(ball).text()};
  EXPECT_EQ(own.Generate(story).text(), expected[0]);
  // Two streams, read by turns: one's steps are the other's too.
  Stream first = own.Submit(story), second = own.Submit(ball);
  Token token;
  EXPECT_EQ(first.Next(token, std::chrono::milliseconds(0)), Stream::Status::kTimeout);
  std::string text[2];
  const auto read = [&](Stream& stream, std::string& to) {
    const Stream::Status status = stream.Next(token);
    if (status == Stream::Status::kToken) to += token.text;
    return status != Stream::Status::kDone;
  };
  while (read(first, text[0])) {
  }
  EXPECT_EQ(second.Next(token, std::chrono::milliseconds(0)), Stream::Status::kToken);
  text[1] += token.text;
  while (read(second, text[1])) {
  }
  EXPECT_EQ(text[0], expected[0]);
  EXPECT_EQ(text[1], expected[1]);
  // Two threads.
  std::thread other([&] { text[0] = own.Generate(story).text(); });
  text[1] = own.Generate(ball).text();
  other.join();
  EXPECT_EQ(text[0], expected[0]);
  EXPECT_EQ(text[1], expected[1]);
  EXPECT_FALSE(own.Step());

  // Nobody reads: steps by hand; and what is left when the engine goes is cancelled.
  Stream left = own.Submit(story);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(own.Step());
  EXPECT_EQ(left.Next(token, std::chrono::milliseconds(0)), Stream::Status::kToken);
  own = Engine(options);
  while (left.Next(token) != Stream::Status::kDone) {
  }
  EXPECT_EQ(left.statistics().finish_reason, FinishReason::kCancelled);
}

TEST_F(Api, TellsProgressTraceAndPieces) {
  Request request;
  request.tokens.assign(300, 5);
  request.max_tokens = 12;
  request.progress = request.trace = request.ignore_eos = true;
  Stream stream = engine->Submit(request);
  std::vector<int64_t> told;
  std::vector<int32_t> decided, tokens;
  Token token;
  for (Stream::Status status; (status = stream.Next(token)) != Stream::Status::kDone;) {
    if (status == Stream::Status::kProgress) {
      EXPECT_EQ(stream.progress().total, 299);
      told.push_back(stream.progress().done);
    } else if (status == Stream::Status::kTrace) {
      for (const loopspec::TraceEvent& event : stream.trace()) {
        if (event.kind == loopspec::TraceEvent::Kind::kAccept ||
            event.kind == loopspec::TraceEvent::Kind::kFallback)
          decided.push_back(event.token);
      }
    } else if (status == Stream::Status::kToken) {
      tokens.push_back(token.id);
    }
  }
  EXPECT_GE(told.size(), 2u);
  EXPECT_EQ(decided, tokens);
  EXPECT_EQ(tokens.size(), 12u);
  std::string pieces;
  for (const int32_t id : engine->Encode("Once, \u20ac!")) pieces += engine->Piece(id);
  EXPECT_EQ(pieces, "Once, \u20ac!");
  const std::string prompt = engine->Render(R"([{"role": "user", "content": "Hello"}])");
  EXPECT_NE(prompt.find("Hello"), std::string::npos);
}

TEST_F(Api, SaysWhereItStands) {
  const loopspec::ModelFacts& facts = engine->facts();
  EXPECT_EQ(facts.name, folder);
  EXPECT_EQ(facts.device, "cpu");
  EXPECT_EQ(facts.depths, Options().depths);
  EXPECT_GT(facts.context, 0);
  EXPECT_GT(facts.parameters, 0);
  EXPECT_TRUE(facts.has_tokenizer && facts.chat_template && !facts.eos_ids.empty());
  loopspec::EngineMetrics before = engine->metrics();
  // What an earlier test left to be cancelled counts when it has ended.
  for (int i = 0; i < 10'000 && before.waiting + before.prefilling + before.decoding > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    before = engine->metrics();
  }
  const Result result = engine->Generate({.prompt = "Once upon a time", .max_tokens = 30});
  loopspec::EngineMetrics after = engine->metrics();
  for (int i = 0; i < 1000 && after.finished == before.finished;
       ++i) {  // told after the last token
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    after = engine->metrics();
  }
  EXPECT_EQ(after.finished, before.finished + 1);
  EXPECT_EQ(after.decoded_tokens, before.decoded_tokens + 30);
  EXPECT_GT(after.drafted, before.drafted);
  EXPECT_EQ(after.drafted - before.drafted, result.statistics().drafted);
  EXPECT_EQ(after.early - before.early, result.statistics().early);
  int64_t steps = 0, rows = 0;
  for (size_t i = 0; i < after.steps_by_rows.size(); ++i) {
    steps += after.steps_by_rows[i];
    rows += after.steps_by_rows[i] * static_cast<int64_t>(i);
  }
  EXPECT_EQ(steps, after.steps);
  EXPECT_EQ(rows, after.rows);
}

TEST_F(Api, RefusesBadRequestsByName) {
  EXPECT_NE(Refusal(*engine, {}).find("prompt is empty"), std::string::npos);
  EXPECT_NE(Refusal(*engine, {.prompt = "a", .tokens = {1}}).find("one prompt"), std::string::npos);
  EXPECT_NE(Refusal(*engine, {.tokens = {1 << 30}}).find("vocabulary"), std::string::npos);
  EXPECT_NE(Refusal(*engine, {.prompt = "a", .max_tokens = 100000}).find("context"),
            std::string::npos);
  EXPECT_NE(Refusal(*engine, {.prompt = "a", .depths = std::vector{3}}).find("which are loaded"),
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

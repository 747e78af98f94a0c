// The limit on thinking: </think> comes after so many tokens at the latest, what comes before is
// the model's own, and LoopSpec writes what autoregressive decoding writes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "loopspec/engine.h"
#include "tests/support/device.h"

namespace loopspec {
namespace {

constexpr const char* kEnd = "</think>";

class ThinkingTest : public ::testing::Test {
 protected:
  static EngineOptions Options() {
    EngineOptions options;
    options.model = std::string(LOOPSPEC_SOURCE_DIR) + "/models/ouro-demo";
    options.depths = {{1, 2}};
    options.device = test::TestDevice();
    options.threads = 1;
    options.kv_positions = 2048;
    options.background = false;
    return options;
  }
  ThinkingTest() : engine_(Options()) {
    request_.prompt = "Tom had a cat. How many cats had Tom?<think>\n";
    request_.max_tokens = 24;
    request_.sampling.emplace();
    request_.seed = 5;
    request_.ignore_eos = true;
  }
  std::vector<int32_t> Ids(const Request& request) {
    std::vector<int32_t> ids;
    const Result result = engine_.Generate(request);
    for (const Token& token : result.choices[0].tokens) ids.push_back(token.id);
    return ids;
  }
  std::vector<int32_t> Plain() {
    Request plain = request_;
    plain.decoding = Decoding::kAutoregressive;
    return Ids(plain);
  }

  Engine engine_;
  Request request_;
};

TEST_F(ThinkingTest, EndsAfterSoManyTokens) {
  const std::vector<int32_t> free = Ids(request_);
  ASSERT_EQ(engine_.Decode(free, false).find(kEnd), std::string::npos);
  for (const int limit : {0, 1, 3, 10}) {
    request_.max_thinking_tokens = limit;
    const std::vector<int32_t> ids = Ids(request_);
    const auto thought = free.begin() + limit;
    EXPECT_TRUE(std::equal(free.begin(), thought, ids.begin())) << limit;
    const std::string before = engine_.Decode({ids.data(), static_cast<size_t>(limit)}, false);
    const std::string text = engine_.Decode(ids, false);
    EXPECT_TRUE(text.starts_with(before + "\n" + kEnd)) << limit << ": " << text;
    EXPECT_EQ(text.find(kEnd, before.size() + 9), std::string::npos) << text;
    EXPECT_EQ(std::ssize(ids), 24) << "what follows the mark is free";
  }
  request_.max_thinking_tokens = 24;
  EXPECT_EQ(Ids(request_), free) << "a limit that is not reached changes nothing";
}

TEST_F(ThinkingTest, IsTheSameWithDraftsAndWithout) {
  for (const float temperature : {0.0f, 1.0f}) {
    for (const int limit : {0, 1, 4}) {
      request_.max_thinking_tokens = limit;
      request_.sampling->temperature = temperature;
      request_.sampling->sampler = Sampler::kCoupled;
      const std::vector<int32_t> plain = Plain();
      for (const bool guesses : {false, true}) {
        Request drafted = request_;
        drafted.guesses = guesses;
        EXPECT_EQ(Ids(drafted), plain) << fmt::format("{} {}", temperature, limit);
      }
      Request lookup = request_;
      lookup.decoding = Decoding::kLookup;
      EXPECT_EQ(Ids(lookup), plain) << fmt::format("{} {}", temperature, limit);
    }
  }
}

// The cascade's text depends on the depths and on nothing else.
TEST_F(ThinkingTest, CascadeDoesNotDependOnTheSchedule) {
  request_.sampling->temperature = 1.0f;
  for (const int limit : {0, 2, 5}) {
    request_.max_thinking_tokens = limit;
    const std::vector<int32_t> one = Ids(request_);
    EXPECT_NE(engine_.Decode(one, false).find(kEnd), std::string::npos);
    for (const int rows : {1, 2, 5}) {
      request_.max_rows = rows;
      EXPECT_EQ(Ids(request_), one) << limit << " " << rows;
    }
    request_.max_rows = 0;
  }
}

TEST_F(ThinkingTest, GoesWithAGrammar) {
  request_.ignore_eos = false;
  request_.grammar = {GrammarKind::kRegex, "(yes|no), [0-9]{3}"};
  for (const int limit : {0, 1, 5}) {
    request_.max_thinking_tokens = limit;
    const Result result = engine_.Generate(request_);
    const std::string text = result.text();
    const size_t end = text.find(kEnd);
    ASSERT_NE(end, std::string::npos) << text;
    const size_t begin = text.find_first_not_of(" \n", end + std::string(kEnd).size());
    ASSERT_NE(begin, std::string::npos) << text;
    const std::string answer = text.substr(begin);
    EXPECT_TRUE(answer.starts_with("yes, ") || answer.starts_with("no, ")) << text;
    EXPECT_EQ(result.statistics().finish_reason, FinishReason::kStop);
    EXPECT_EQ(Ids(request_), Plain()) << limit;
  }
}

TEST_F(ThinkingTest, CountsOnlyWhereThePromptEndsInThinking) {
  request_.max_thinking_tokens = 1;
  for (const char* prompt : {"Tom had a cat.", "Tom had a cat.<think>\n</think>\n\n"}) {
    request_.prompt = prompt;
    Request unlimited = request_;
    unlimited.max_thinking_tokens.reset();
    EXPECT_EQ(Ids(request_), Ids(unlimited));
  }
}

}  // namespace
}  // namespace loopspec

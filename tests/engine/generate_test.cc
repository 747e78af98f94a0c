// Engine::Generate: one request from its submission to its end, read by the thread that wants it.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/laboratory.h"
#include "kv/ledger.h"
#include "tests/support/driver.h"
#include "tests/support/models.h"

namespace loopspec {
namespace {

class GenerateTest : public testing::Test {
 protected:
  GenerateTest()
      : loaded_(std::make_shared<const LoadedModel>(EngineOptions{
            .model = (std::filesystem::path(LOOPSPEC_SOURCE_DIR) / "models/ouro-demo").string()})),
        engine_([&] {
          BackendOptions options;
          options.readout_depths = {1, 2, 4};
          options.kv_positions = 512;
          options.threads = 1;  // tests share the machine with others
          return MakeLaboratoryEngine(loaded_, MakeTestBackend(loaded_->model(), options), {},
                                      {{1, 2}});
        }()) {
    request_.tokens = DemoPrompts("ouro-demo")[0];
    request_.sampling = SamplingParams{};
    request_.max_tokens = 40;
    request_.ignore_eos = true;
    request_.group = 1;
    SetDecoding({1, 2}, false, request_);
  }

  void ExpectEverythingGivenBack() const {
    const EngineMetrics state = engine_.metrics();
    EXPECT_EQ(state.cells_free, state.cells);
    EXPECT_EQ(state.pages_free, state.pages);
  }

  static std::vector<int32_t> Ids(const Result& result) {
    std::vector<int32_t> ids;
    for (const Token& token : result.choices[0].tokens) ids.push_back(token.id);
    return ids;
  }

  std::shared_ptr<const LoadedModel> loaded_;
  Engine engine_;
  Request request_;
};

TEST_F(GenerateTest, ACallbackThatHasEnoughIsNotCalledAgain) {
  const std::vector<int32_t> whole = Ids(engine_.Generate(request_));
  ASSERT_EQ(whole.size(), 40u);
  for (const int enough : {1, 2, 7, 39}) {
    int calls = 0;
    const Result result =
        engine_.Generate(request_, [&](const Token&) { return ++calls < enough; });
    EXPECT_EQ(calls, enough);
    EXPECT_EQ(Ids(result), std::vector<int32_t>(whole.begin(), whole.begin() + enough));
    EXPECT_EQ(result.statistics().decoded_tokens, enough);
    ExpectEverythingGivenBack();
  }
  EXPECT_EQ(Ids(engine_.Generate(request_)), whole);
}

TEST_F(GenerateTest, TellsHowFarThePromptIs) {
  request_.tokens = RandomTokens(loaded_->spec(), 400, 1);
  request_.max_tokens = 2;
  std::vector<int64_t> told;
  const auto tell = [&](const Stream::Progress& prompt) {
    EXPECT_EQ(prompt.total, 399);
    told.push_back(prompt.done);
    return true;
  };
  const std::vector<int32_t> quiet = Ids(engine_.Generate(request_, {}, tell));
  EXPECT_TRUE(told.empty());  // it was not asked for
  request_.progress = true;
  EXPECT_EQ(Ids(engine_.Generate(request_, {}, tell)), quiet);
  ASSERT_GE(told.size(), 3u);
  EXPECT_EQ(told[0], 0);
  EXPECT_EQ(told[1], kPageSize);
  for (size_t i = 1; i < told.size(); ++i) {
    EXPECT_GT(told[i], told[i - 1]);
    EXPECT_LT(told[i], 399);
  }

  int calls = 0;
  const Result given_up = engine_.Generate(
      request_, [&](const Token&) { return ++calls < 0; },
      [&](const Stream::Progress&) { return ++calls < 0; });
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(given_up.choices[0].tokens.empty());
  EXPECT_EQ(given_up.statistics().finish_reason, FinishReason::kCancelled);
  ExpectEverythingGivenBack();
}

// The beginning of a stop string is held back; when the text ends there after all, it is shown.
TEST_F(GenerateTest, WhatWasHeldBackComesAtTheEnd) {
  SetDecoding({}, false, request_);  // a token for each step: none is decided beyond the last
  const Result whole = engine_.Generate(request_);
  request_.stop = {whole.text() + "!"};
  std::string shown;
  const Result cut = engine_.Generate(request_, [&](const Token& token) {
    shown += token.text;
    return false;
  });
  ASSERT_EQ(cut.choices[0].tokens.size(), 1u);
  EXPECT_EQ(shown, "");
  EXPECT_FALSE(cut.text().empty());
  EXPECT_TRUE(whole.text().starts_with(cut.text()));
}

TEST_F(GenerateTest, ARequestMayHaveFewerRowsThanTheEngine) {
  const Result free = engine_.Generate(request_);
  EXPECT_GT(free.statistics().rows_peak, 2);
  request_.max_rows = 2;
  const Result few = engine_.Generate(request_);
  EXPECT_EQ(few.statistics().rows_peak, 2);
  EXPECT_EQ(Ids(few), Ids(free));
}

// Outcomes that are assumed are drawn from the seed, whatever the model says.
TEST_F(GenerateTest, AssumedOutcomesAcceptAtTheirRate) {
  ChangeLaboratory(request_, [](Laboratory& laboratory) {
    laboratory.assumed = {{1.0, 0.0}, 0, 0, 0};
  });
  request_.max_tokens = 60;
  const Result all = engine_.Generate(request_);
  EXPECT_EQ(all.statistics().accepted, (std::vector<int64_t>{60, 0}));
  ChangeLaboratory(request_, [](Laboratory& laboratory) {
    laboratory.assumed = {{0.0, 0.0}, 0, 0, 0};
  });
  const Result none = engine_.Generate(request_);
  EXPECT_EQ(none.statistics().accepted, (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(none.statistics().fallback, 60);
}

// Where branches went is told of the choice that they belong to.
TEST_F(GenerateTest, TracesWhereAsked) {
  EXPECT_TRUE(engine_.Generate(request_).choices[0].trace.empty());
  request_.trace = true;
  int64_t verified = 0;
  const Result traced = engine_.Generate(request_);
  for (const TraceEvent& event : traced.choices[0].trace) {
    verified += event.kind == TraceEvent::Kind::kAccept ? 1 : 0;
    verified += event.kind == TraceEvent::Kind::kFallback ? 1 : 0;
  }
  EXPECT_EQ(verified, 40);
}

}  // namespace
}  // namespace loopspec

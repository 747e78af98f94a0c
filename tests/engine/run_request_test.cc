// One request at a time, driven by its own thread.
#include "engine/run_request.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/driver.h"
#include "tests/support/models.h"
#include "text/tokenizer.h"

namespace loopspec {
namespace {

class RunRequestTest : public testing::Test {
 protected:
  RunRequestTest() : model_(LoadTestModel("ouro-demo")) {
    BackendOptions options;
    options.readout_depths = {1, 2, 4};
    options.kv_positions = 512;
    options.threads = 1;  // tests share the machine with others
    backend_ = MakeTestBackend(model_, options);
    scheduler_ = std::make_unique<Scheduler>(*backend_, OneAtATime());
    request_.prompt = DemoPrompts("ouro-demo")[0];
    request_.max_tokens = 40;
    request_.depths = {1, 2};
  }

  void ExpectEverythingGivenBack() const {
    const EngineMetrics state = scheduler_->state();
    EXPECT_EQ(state.cells_free, state.cells);
    EXPECT_EQ(state.pages_free, state.pages);
  }

  static std::vector<int32_t> Ids(const Choice& result) {
    std::vector<int32_t> ids;
    for (const Token& token : result.tokens) ids.push_back(token.id);
    return ids;
  }

  Model model_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Scheduler> scheduler_;
  ResolvedRequest request_;
};

TEST_F(RunRequestTest, ACallbackThatHasEnoughIsNotCalledAgain) {
  const std::vector<int32_t> whole = Ids(RunRequest(*scheduler_, request_));
  ASSERT_EQ(whole.size(), 40u);
  for (const int enough : {1, 2, 7, 39}) {
    int calls = 0;
    const Choice result =
        RunRequest(*scheduler_, request_, [&](const StreamEvent&) { return ++calls < enough; });
    EXPECT_EQ(calls, enough);
    EXPECT_EQ(Ids(result), std::vector<int32_t>(whole.begin(), whole.begin() + enough));
    EXPECT_EQ(result.statistics.decoded_tokens, enough);
    ExpectEverythingGivenBack();
  }
  EXPECT_EQ(Ids(RunRequest(*scheduler_, request_)), whole);
}

TEST_F(RunRequestTest, TellsHowFarThePromptIs) {
  request_.prompt = RandomTokens(model_.spec, 400, 1);
  request_.max_tokens = 2;
  const std::vector<int32_t> quiet = Ids(RunRequest(*scheduler_, request_));
  request_.progress = true;
  std::vector<int64_t> told;
  const Choice result = RunRequest(*scheduler_, request_, [&](const StreamEvent& event) {
    if (event.status != Stream::Status::kProgress) return true;
    EXPECT_EQ(event.progress.total, 399);
    told.push_back(event.progress.done);
    return true;
  });
  EXPECT_EQ(Ids(result), quiet);
  ASSERT_GE(told.size(), 3u);
  EXPECT_EQ(told[0], 0);
  EXPECT_EQ(told[1], kPageSize);
  for (size_t i = 1; i < told.size(); ++i) {
    EXPECT_GT(told[i], told[i - 1]);
    EXPECT_LT(told[i], 399);
  }

  int calls = 0;
  const Choice given_up = RunRequest(*scheduler_, request_, [&](const StreamEvent&) {
    ++calls;
    return false;
  });
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(given_up.tokens.empty());
  EXPECT_EQ(given_up.statistics.finish_reason, FinishReason::kCancelled);
  ExpectEverythingGivenBack();
}

// The beginning of a stop string is held back; when the text ends there after all, it is shown.
TEST_F(RunRequestTest, WhatWasHeldBackComesAtTheEnd) {
  const Tokenizer tokenizer =
      Tokenizer::FromFolder(std::filesystem::path(LOOPSPEC_SOURCE_DIR) / "models" / "ouro-demo");
  request_.depths = {};  // a token for each step: none is decided beyond the last
  SchedulerOptions options = OneAtATime();
  options.tokenizer = &tokenizer;
  scheduler_ = std::make_unique<Scheduler>(*backend_, options);
  const Choice whole = RunRequest(*scheduler_, request_);
  request_.stop = {whole.text + "!"};
  std::string shown;
  const Choice cut = RunRequest(*scheduler_, request_, [&](const StreamEvent& event) {
    shown += event.token.text;
    return false;
  });
  ASSERT_EQ(cut.tokens.size(), 1u);
  EXPECT_EQ(shown, "");
  EXPECT_FALSE(cut.text.empty());
  EXPECT_TRUE(whole.text.starts_with(cut.text));
}

TEST_F(RunRequestTest, ARequestMayHaveFewerRowsThanTheScheduler) {
  const Choice free = RunRequest(*scheduler_, request_);
  EXPECT_GT(free.statistics.rows_peak, 2);
  request_.max_rows = 2;
  const Choice few = RunRequest(*scheduler_, request_);
  EXPECT_EQ(few.statistics.rows_peak, 2);
  EXPECT_EQ(Ids(few), Ids(free));
}

}  // namespace
}  // namespace loopspec

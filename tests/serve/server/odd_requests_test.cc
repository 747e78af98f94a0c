// Requests at the edges of what may be asked, over the real engine: each gets an answer or a clear
// refusal, and the next one gets what it always gets.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "serve/http/server.h"
#include "serve/server/service.h"
#include "tests/serve/client.h"
#include "tests/support/device.h"

namespace loopspec::test {
namespace {

class OddRequests : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    EngineOptions load;
    load.model = LOOPSPEC_SOURCE_DIR "/models/ouro-demo";
    load.device = TestDevice();
    load.threads = 1;
    load.kv_positions = 256;  // so that prompts are soon at the limit
    engine_ = std::make_shared<Engine>(load);
    serve::ServiceOptions options;
    options.log.file = "/dev/null";
    options.limits.max_n = 64;
    options.limits.max_scores = 2000;
    service_ = new serve::Service(options);
    service_->SetEngine(engine_);
    const serve::HttpServerOptions http = PatientHttp();
    server_ = new serve::HttpServer(http, *service_);
    usual_ = Text({{"prompt", "Once upon a time"}, {"max_tokens", 6}, {"temperature", 0}});
  }
  static void TearDownTestSuite() {
    delete server_;
    delete service_;
    engine_.reset();
  }

  static Answer Send(const Json& body) { return Post(server_->port(), "/v1/completions", body); }
  static Json Complete(const Json& body) {
    const Answer answer = Send(body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json();
  }
  static std::string Text(const Json& body) { return Complete(body)["choices"][0]["text"]; }
  static std::vector<int> Ids(int64_t count) {
    std::vector<int> ids;
    for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int>(5 + i * 7 % 900));
    return ids;
  }
  // Nothing that came before has changed what others get.
  void TearDown() override {
    EXPECT_EQ(Text({{"prompt", "Once upon a time"}, {"max_tokens", 6}, {"temperature", 0}}),
              usual_);
  }

  static std::shared_ptr<Engine> engine_;
  static serve::Service* service_;
  static serve::HttpServer* server_;
  static std::string usual_;
};

std::shared_ptr<Engine> OddRequests::engine_;
serve::Service* OddRequests::service_;
serve::HttpServer* OddRequests::server_;
std::string OddRequests::usual_;

TEST_F(OddRequests, PromptsAtTheLimitOfTheContext) {
  const int64_t context = engine_->facts().context;
  ASSERT_EQ(context, 256);
  // Scored alone it may fill the context; with one token it may have one less.
  const Json scored = Complete(
      {{"prompt", Ids(context)}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 0}})["choices"][0];
  EXPECT_EQ(scored["logprobs"]["token_logprobs"].size(), static_cast<size_t>(context));
  EXPECT_EQ(scored["finish_reason"], "length");
  const Json one =
      Complete({{"prompt", Ids(context - 1)}, {"max_tokens", 1}, {"ignore_eos", true}});
  EXPECT_EQ(one["usage"]["completion_tokens"], 1);
  EXPECT_EQ(one["usage"]["total_tokens"], context);
  for (const Json& tokens : {Json(0), Json(1), Json(nullptr)}) {
    const bool echo = tokens == 0;
    const Answer over =
        Send({{"prompt", Ids(context + (echo ? 1 : 0))}, {"max_tokens", tokens}, {"echo", echo}});
    EXPECT_EQ(over.status, 400);
    EXPECT_EQ(over.json()["error"]["code"], "context_length_exceeded") << over.body;
  }
  // Without a number the rest of the context is the answer's.
  const Answer chat = Post(server_->port(), "/v1/chat/completions",
                           {{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
                            {"ignore_eos", true},
                            {"temperature", 0}});
  if (chat.status == 200) {
    EXPECT_EQ(chat.json()["usage"]["total_tokens"], context);
  }
}

TEST_F(OddRequests, SixtyFourChoices) {
  const Json answer = Complete({{"prompt", Ids(100)},
                                {"n", 64},
                                {"max_tokens", 3},
                                {"temperature", 1},
                                {"ignore_eos", true},
                                {"seed", 3}});
  ASSERT_EQ(answer["choices"].size(), 64u);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 3 * 64);
  // The same as each gets in a smaller group.
  const Json few = Complete({{"prompt", Ids(100)},
                             {"n", 2},
                             {"max_tokens", 3},
                             {"temperature", 1},
                             {"ignore_eos", true},
                             {"seed", 3}});
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(few["choices"][i]["text"], answer["choices"][i]["text"]);
}

TEST_F(OddRequests, SamplingAtTheEdgesOfItsRanges) {
  const std::vector<Json> odd = {
      {{"temperature", 5}},
      {{"temperature", 1000}, {"top_p", 1e-30}},
      {{"temperature", 1e-40}},
      {{"temperature", 1e-300}},
      {{"temperature", 1}, {"repetition_penalty", 1e-40}},
      {{"temperature", 1}, {"repetition_penalty", 1000}},
      {{"temperature", 0}, {"repetition_penalty", 1e-40}},
      {{"temperature", 1}, {"min_p", 1}},
      {{"temperature", 1}, {"top_k", std::numeric_limits<int32_t>::max()}, {"top_p", 0.5}},
      {{"temperature", 5}, {"presence_penalty", 2}, {"frequency_penalty", -2}},
      {{"temperature", 1}, {"seed", -1}},
      {{"temperature", 1}, {"seed", std::numeric_limits<uint64_t>::max()}}};
  for (const char* sampler : {"cascade", "coupled"}) {
    for (Json body : odd) {
      body.update(
          {{"prompt", "The cat"}, {"max_tokens", 4}, {"sampler", sampler}, {"logprobs", 1}});
      const Json answer = Complete(body);
      ASSERT_FALSE(answer["choices"][0]["logprobs"]["token_logprobs"].empty()) << body;
      for (const Json& logprob : answer["choices"][0]["logprobs"]["token_logprobs"])
        EXPECT_TRUE(logprob.is_number()) << body << logprob;
    }
  }
  // Below the smallest float nothing is left of it, which is said and not rounded to off.
  EXPECT_EQ(Send({{"prompt", "x"}, {"top_p", 1e-300}}).status, 400);
  EXPECT_EQ(Send({{"prompt", "x"}, {"repetition_penalty", 1e-300}}).status, 400);
}

TEST_F(OddRequests, BiasOnManyTokens) {
  Json bias = Json::object();
  for (int id = 0; id < 1024; ++id) bias[std::to_string(id)] = id == 77 ? 100 : -100;
  const Json answer = Complete({{"prompt", "The cat"},
                                {"max_tokens", 4},
                                {"temperature", 0},
                                {"ignore_eos", true},
                                {"logit_bias", bias},
                                {"token_details", true}});
  for (const Json& token : answer["choices"][0]["tokens"]) EXPECT_EQ(token["id"], 77);
  bias["1024"] = 1;
  EXPECT_EQ(Send({{"prompt", "x"}, {"logit_bias", bias}}).param(), "logit_bias");
}

TEST_F(OddRequests, ManyStops) {
  std::vector<std::string> stops;
  for (int i = 0; i < 16; ++i) stops.push_back(std::string(1023, 'a') + static_cast<char>('a' + i));
  Json body = {{"prompt", "Once upon a time"}, {"max_tokens", 6}, {"temperature", 0}};
  body["stop"] = stops;
  EXPECT_EQ(Text(body), usual_);
  body["stop_token_ids"] = std::vector<int>(500'000, 3);
  EXPECT_EQ(Text(body), usual_);
  stops.push_back("b");
  body["stop"] = stops;
  EXPECT_EQ(Send(body).param(), "stop");
}

TEST_F(OddRequests, ScoresOfManyPromptsAreLimited) {
  const Json prompts = {Ids(200), Ids(100), Ids(150)};
  Json body = {{"prompt", prompts}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 3}};
  EXPECT_EQ(Complete(body)["choices"].size(), 3u);  // 450 tokens with four each
  body["logprobs"] = 4;
  const Answer refused = Send(body);
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.param(), "logprobs");
  EXPECT_NE(refused.error().find("2250"), std::string::npos) << refused.error();
}

}  // namespace
}  // namespace loopspec::test

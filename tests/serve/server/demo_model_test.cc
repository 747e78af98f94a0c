// The server over a demo model: the same text as the engine gives alone, over HTTP, under load and
// among clients that hang up.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>

#include "serve/http/server.h"
#include "serve/server/service.h"
#include "tests/serve/client.h"
#include "tests/support/device.h"
#include "tests/support/scripted_engine.h"

namespace loopspec::test {
namespace {

constexpr const char* kPrompts[] = {"Once upon a time", "The cat", "Tom has 3 apples and",
                                    "One day, a little girl named"};

class DemoModelTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    EngineOptions load;
    load.model = LOOPSPEC_SOURCE_DIR "/models/ouro-demo";
    load.device = TestDevice();
    load.threads = 2;
    load.kv_positions = 16384;
    engine_ = std::make_shared<Engine>(load);
    serve::ServiceOptions options;
    options.log.file = "/dev/null";
    service_ = new serve::Service(options);
    service_->SetEngine(engine_);
    const serve::HttpServerOptions http = PatientHttp();
    server_ = new serve::HttpServer(http, *service_);
  }
  static void TearDownTestSuite() {
    delete server_;
    delete service_;
    engine_.reset();
  }

  static Json Complete(Json body) {
    const Answer answer = Post(server_->port(), "/v1/completions", body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json();
  }
  static std::string Text(const Json& body) { return Complete(body)["choices"][0]["text"]; }
  static std::shared_ptr<Engine> engine_;
  static serve::Service* service_;
  static serve::HttpServer* server_;
};

std::shared_ptr<Engine> DemoModelTest::engine_;
serve::Service* DemoModelTest::service_;
serve::HttpServer* DemoModelTest::server_;

TEST_F(DemoModelTest, GreedyTextIsTheSameWithAndWithoutDrafts) {
  for (const char* prompt : kPrompts) {
    Json body = {{"prompt", prompt}, {"max_tokens", 40}, {"temperature", 0}};
    const std::string drafted = Text(body);
    body["decode"] = "ar";
    EXPECT_EQ(Text(body), drafted);
    EXPECT_FALSE(drafted.empty());
  }
}

// Text depends on it, so clients are told what "loops" is for this model.
TEST(ModelByThePlanOfKeys, NamesThePlanThatRuns) {
  EngineOptions load;
  load.model = LOOPSPEC_SOURCE_DIR "/models/ouro-demo";
  load.device = "cpu";
  load.kv_type = "loops";
  load.threads = 1;
  load.kv_positions = 1024;
  serve::ServiceOptions options;
  options.log.file = "/dev/null";
  serve::Service service(options);
  service.SetEngine(std::make_shared<Engine>(load));
  serve::HttpServer server(PatientHttp(), service);
  EXPECT_EQ(Get(server.port(), "/v1/models").json()["data"][0]["loopspec"]["kv_type"],
            "loops:int8,r5,r4@64");
  EXPECT_EQ(Get(server.port(), "/get_server_info").json()["kv_cache_dtype"], "loops:int8,r5,r4@64");
}

TEST_F(DemoModelTest, SeedsGiveTheSameTextAndAreReturned) {
  Json body = {{"prompt", "Once"}, {"max_tokens", 30}, {"temperature", 1}, {"sampler", "coupled"}};
  const Json first = Complete(body);
  body["seed"] = first["loopspec"]["seed"];
  EXPECT_EQ(first["choices"][0]["text"], Text(body));
  body["decode"] = "ar";
  EXPECT_EQ(first["choices"][0]["text"], Text(body));
}

// Without a temperature, where the model has none, OpenAI's holds.
TEST_F(DemoModelTest, AnswersToOnePromptDiffer) {
  const Json body =
      Complete({{"prompt", "Once upon a"}, {"max_tokens", 24}, {"n", 4}, {"seed", 3}});
  std::set<std::string> texts;
  for (const Json& choice : body["choices"]) texts.insert(choice["text"].get<std::string>());
  EXPECT_GT(texts.size(), 1u);
  Json greedy = {{"prompt", "Once upon a"}, {"max_tokens", 24}, {"temperature", 0}};
  const std::string likeliest = Text(greedy);
  greedy["temperature"] = 2;
  greedy["top_p"] = 0;
  EXPECT_EQ(Text(greedy), likeliest);
}

// Nothing but the likeliest token is within a millionth of a standard deviation of the largest
// logit.
TEST_F(DemoModelTest, TopNSigmaComesThroughABody) {
  Json body = {{"prompt", "Once upon a"}, {"max_tokens", 24}, {"temperature", 0}};
  const std::string likeliest = Text(body);
  body["temperature"] = 2;
  body["seed"] = 3;
  EXPECT_NE(Text(body), likeliest);
  body["top_n_sigma"] = 1e-6;
  EXPECT_EQ(Text(body), likeliest);
  body["top_n_sigma"] = -2;
  EXPECT_EQ(Post(server_->port(), "/v1/completions", body).status, 400);
}

TEST_F(DemoModelTest, StreamsAreWhatTheWholeAnswerIs) {
  Json body = {{"prompt", kPrompts[0]}, {"max_tokens", 50}, {"temperature", 0}, {"logprobs", 2}};
  const Json whole = Complete(body)["choices"][0];
  body["stream"] = true;
  const Answer answer = Post(server_->port(), "/v1/completions", body);
  std::string text;
  Json tokens = Json::array();
  for (const std::string& event : answer.Events()) {
    if (event == "[DONE]") continue;
    const Json choice = Json::parse(event)["choices"][0];
    text += choice["text"].get<std::string>();
    if (choice["logprobs"].is_null()) continue;
    for (const Json& token : choice["logprobs"]["tokens"]) tokens.push_back(token);
  }
  EXPECT_EQ(whole["text"], text);
  EXPECT_EQ(whole["logprobs"]["tokens"], tokens);
  // Greedy: each token is the likeliest, with the very same number.
  for (size_t i = 0; i < tokens.size(); ++i) {
    double most = -1e9;
    for (const auto& [token, value] : whole["logprobs"]["top_logprobs"][i].items()) {
      most = std::max(most, value.get<double>());
    }
    EXPECT_EQ(whole["logprobs"]["token_logprobs"][i], most);
  }
}

TEST_F(DemoModelTest, ScoresPromptsAsItDecodesThem) {
  if (!OnCpu()) GTEST_SKIP() << "a GPU's prefill does not have the bits of its decoding";
  Json body = {{"prompt", kPrompts[0]}, {"max_tokens", 12}, {"temperature", 0}, {"logprobs", 1}};
  const Json answer = Complete(body)["choices"][0]["logprobs"];
  // The same tokens as a prompt: prefill gives them the numbers that decoding gave (CPU).
  const Json ids = Post(server_->port(), "/tokenize", {{"prompt", kPrompts[0]}}).json()["tokens"];
  std::vector<int> prompt = ids;
  const size_t before = prompt.size();
  const Json generated =
      Post(server_->port(), "/generate",
           {{"input_ids", ids}, {"sampling_params", {{"max_new_tokens", 12}, {"temperature", 0}}}})
          .json();
  for (const int id : generated["output_ids"]) prompt.push_back(id);
  const Json scored = Complete({{"prompt", prompt},
                                {"max_tokens", 0},
                                {"echo", true},
                                {"logprobs", 1}})["choices"][0]["logprobs"];
  ASSERT_EQ(scored["token_logprobs"].size(), prompt.size());
  EXPECT_TRUE(scored["token_logprobs"][0].is_null());
  for (size_t i = before; i < prompt.size(); ++i) {
    EXPECT_EQ(scored["token_logprobs"][i], answer["token_logprobs"][i - before]) << i;
  }
}

TEST_F(DemoModelTest, RefusesWithTheNumbers) {
  const int64_t context = engine_->facts().context;
  const Answer answer = Post(server_->port(), "/v1/completions",
                             {{"prompt", std::vector<int>(static_cast<size_t>(context), 5)}});
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.error().find(std::to_string(context)), std::string::npos) << answer.error();
  EXPECT_EQ(Post(server_->port(), "/v1/completions", {{"prompt", "x"}, {"depths", {3}}}).status,
            400);
}

TEST_F(DemoModelTest, ManyClientsGetWhatEachGetsAlone) {
  std::vector<Json> bodies;
  std::vector<std::string> alone;
  for (int i = 0; i < 12; ++i) {
    bodies.push_back({{"prompt", kPrompts[i % 4]},
                      {"max_tokens", 10 + 3 * i},
                      {"seed", i},
                      {"temperature", i % 3 == 0 ? 0.0 : 0.8}});
    alone.push_back(Text(bodies.back()));
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < 12; ++i) {
    threads.emplace_back([&, i] {
      Client leaver(server_->port());  // and some who do not wait
      leaver.Send(PostText(
          "/v1/completions",
          Json{{"prompt", kPrompts[i % 4]}, {"max_tokens", 200}, {"stream", i % 2 == 0}}.dump()));
      EXPECT_EQ(Text(bodies[static_cast<size_t>(i)]), alone[static_cast<size_t>(i)]) << i;
      leaver.Close();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(WaitIdle(*engine_, 60)) << "hang-ups were not noticed";
}

// The steps of the branches say what was decided, and nothing is said unasked.
TEST_F(DemoModelTest, TellsTheStepsWhenAsked) {
  for (const char* decode : {"ar", "loopspec"}) {
    Json body = {{"prompt", kPrompts[0]}, {"max_tokens", 24},      {"temperature", 0},
                 {"decode", decode},      {"token_details", true}, {"trace", true}};
    const Json choice = Complete(body)["choices"][0];
    std::vector<Json> tokens, decided;
    int64_t live = 0, last_step = 0;
    for (const Json& token : choice["tokens"]) tokens.push_back(token["id"]);
    for (const Json& step : choice["steps"]) {
      const std::string kind = step["kind"];
      EXPECT_GE(step["step"].get<int64_t>(), last_step);
      last_step = step["step"];
      if (kind == "accept" || kind == "fallback") decided.push_back(step["token"]);
      live += kind == "spawn" ? 1 : kind == "prune" ? -1 : 0;
    }
    EXPECT_EQ(decided, tokens) << decode;
    EXPECT_GT(live, 0);
    body["trace"] = false;
    EXPECT_FALSE(Complete(body)["choices"][0].contains("steps"));
  }
}

TEST_F(DemoModelTest, Chats) {
  const Answer answer = Post(server_->port(), "/v1/chat/completions",
                             {{"messages", {{{"role", "user"}, {"content", "Tell me a story."}}}},
                              {"max_tokens", 30},
                              {"temperature", 0}});
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_FALSE(answer.json()["choices"][0]["message"]["content"].get<std::string>().empty());
  EXPECT_GT(answer.json()["loopspec"]["gamma"].get<double>(), 1.0);
}

}  // namespace
}  // namespace loopspec::test

// The API over HTTP: the real engine behind it, over a backend that says what a test wants.
#include "serve/server/service.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "serve/http/server.h"
#include "tests/serve/client.h"
#include "tests/support/scripted_engine.h"
#include "text/unicode.h"

namespace loopspec::test {
namespace {

using namespace std::chrono_literals;
using serve::HttpServer;
using serve::HttpServerOptions;
using serve::Service;
using serve::ServiceOptions;

class ServiceTest : public testing::Test {
 protected:
  ServiceTest() {
    log_ = std::filesystem::temp_directory_path() /
           fmt::format("loopspec-log-{}-{}", getpid(),
                       testing::UnitTest::GetInstance()->current_test_info()->name());
    options_.log.file = log_.string();
    options_.log.json = true;
  }
  ~ServiceTest() override {
    server_.reset();
    service_.reset();
    std::filesystem::remove(log_);
  }

  void Start(const ScriptedOptions& engine = {}) {
    server_.reset();  // of an earlier start; it holds the service
    engine_.reset();
    service_ = std::make_unique<Service>(options_);
    server_ = std::make_unique<HttpServer>(http_, *service_);
    service_->SetHttpCounts([this] { return server_->counts(); });
    engine_ = MakeScriptedEngine(engine);
    service_->SetEngine(engine_);
  }
  Answer Complete(Json body, std::string_view headers = "") {
    return Post(server_->port(), "/v1/completions", body, headers);
  }
  Answer Chat(Json fields = Json::object()) {
    fields["messages"] = {{{"role", "user"}, {"content", "hi"}}};
    return Post(server_->port(), "/v1/chat/completions", fields);
  }
  void ExpectRefused(const Answer& answer, const char* param) {
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_EQ(answer.param(), param) << answer.body;
  }
  std::string Log() const {
    std::ifstream file(log_);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  std::filesystem::path log_;
  ServiceOptions options_;
  HttpServerOptions http_ = PatientHttp();
  std::shared_ptr<Engine> engine_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(ServiceTest, CompletesText) {
  Start();
  const Answer answer = Complete({{"prompt", "one"}, {"max_tokens", 12}, {"seed", 5}});
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json body = answer.json();
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["model"], "fake");
  EXPECT_EQ(body["choices"][0]["text"], "abcdefghijab");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(body["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(body["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(body["usage"]["completion_tokens"], 12);
  EXPECT_EQ(body["usage"]["total_tokens"], 16);
  const Json& told = body["loopspec"];
  ASSERT_EQ(told["accepted"].size(), 2u);  // the script's early readouts err now and then
  EXPECT_GT(told["accepted"][0], 0);
  EXPECT_GT(told["accepted"][1], 0);
  EXPECT_EQ(
      told["accepted"][0].get<int>() + told["accepted"][1].get<int>() + told["fallback"].get<int>(),
      12);
  EXPECT_GT(told["gamma"], 1.0);
  EXPECT_GT(told["tokens_per_pass"], 1.0);
  EXPECT_EQ(told["cached_tokens"], 0);
  EXPECT_EQ(told["seed"], 5);
  EXPECT_FALSE(answer.Header("X-Request-Id").empty());
}

TEST_F(ServiceTest, TellsWhatWasFoundComputed) {
  Start();
  const std::string prompt(200, 'p');
  Complete({{"prompt", prompt}, {"max_tokens", 2}});
  const Json body = Complete({{"prompt", prompt}, {"max_tokens", 2}}).json();
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 192);  // three pages
  EXPECT_EQ(body["loopspec"]["cached_tokens"], 192);
}

TEST_F(ServiceTest, CompletesManyPromptsAndChoices) {
  Start();
  const Json body = Complete({{"prompt", {"x", "yz"}}, {"n", 3}, {"max_tokens", 2}}).json();
  ASSERT_EQ(body["choices"].size(), 6u);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    EXPECT_EQ(body["choices"][i]["text"], "ab");
  }
  EXPECT_EQ(body["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(body["usage"]["completion_tokens"], 12);
}

TEST_F(ServiceTest, EchoesAndScoresPrompts) {
  Start();
  const Json body =
      Complete({{"prompt", {104, 105}}, {"echo", true}, {"logprobs", 1}, {"max_tokens", 1}}).json();
  const Json& choice = body["choices"][0];
  EXPECT_EQ(choice["text"], "hia");
  EXPECT_EQ(choice["logprobs"]["tokens"], (std::vector<std::string>{"h", "i", "a"}));
  EXPECT_TRUE(choice["logprobs"]["token_logprobs"][0].is_null());
  EXPECT_EQ(choice["logprobs"]["token_logprobs"][1], choice["logprobs"]["top_logprobs"][1]["i"]);
  EXPECT_EQ(choice["logprobs"]["text_offset"], (std::vector<int>{0, 1, 2}));
  const Json only = Complete({{"prompt", "hi"}, {"echo", true}, {"max_tokens", 0}}).json();
  EXPECT_EQ(only["choices"][0]["text"], "hi");
  EXPECT_EQ(only["usage"]["completion_tokens"], 0);
}

TEST_F(ServiceTest, StreamsEvents) {
  Start();
  const Answer answer = Complete({{"prompt", "x"},
                                  {"max_tokens", 25},
                                  {"stream", true},
                                  {"n", 2},
                                  {"stream_options", {{"include_usage", true}}}});
  EXPECT_EQ(answer.Header("Content-Type"), "text/event-stream; charset=utf-8");
  EXPECT_TRUE(answer.complete);
  const std::vector<std::string> events = answer.Events();
  ASSERT_GE(events.size(), 4u);
  EXPECT_EQ(events.back(), "[DONE]");
  std::string text[2];
  int finished = 0, summaries = 0;
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    const Json event = Json::parse(events[i]);
    EXPECT_TRUE(event["usage"].is_null());
    const Json& choice = event["choices"].at(0);
    text[choice["index"].get<int>()] += choice["text"].get<std::string>();
    finished += choice["finish_reason"] == "length";
    summaries += event.contains("loopspec");
  }
  const Json usage = Json::parse(events[events.size() - 2]);
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 50);
  EXPECT_EQ(text[0], "abcdefghijabcdefghijabcde");
  EXPECT_EQ(text[1], text[0]);
  EXPECT_EQ(finished, 2);
  EXPECT_EQ(summaries, 1);
}

TEST_F(ServiceTest, Chats) {
  ScriptedOptions engine;
  engine.answer = "<think>\nhm\n</think>\n\nhello \u20ac!";
  engine.endless = false;
  Start(engine);
  Json body = Chat().json();
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["choices"][0]["message"]["content"], engine.answer);
  EXPECT_FALSE(body["choices"][0]["message"].contains("reasoning_content"));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["usage"]["prompt_tokens"], std::string("user: hi\n").size());

  body = Chat({{"reasoning_format", "deepseek"}}).json();
  EXPECT_EQ(body["choices"][0]["message"]["content"], "hello \u20ac!");
  EXPECT_EQ(body["choices"][0]["message"]["reasoning_content"], "hm");

  const Answer answer = Chat({{"reasoning_format", "deepseek"},
                              {"stream", true},
                              {"logprobs", true},
                              {"top_logprobs", 2},
                              {"token_details", true}});
  std::string content, reasoning, role, pieces;
  size_t tokens = 0;
  std::vector<std::string> events = answer.Events();
  EXPECT_EQ(events.back(), "[DONE]");
  events.pop_back();
  for (const std::string& text : events) {
    const Json event = Json::parse(text);
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    const Json& choice = event["choices"][0];
    role += choice["delta"].value("role", "");
    content += choice["delta"].value("content", "");
    reasoning += choice["delta"].value("reasoning_content", "");
    tokens += choice["tokens"].size();
    if (choice["logprobs"].is_null()) continue;
    for (const Json& token : choice["logprobs"]["content"]) {
      for (const int byte : token["bytes"]) pieces.push_back(static_cast<char>(byte));
    }
  }
  EXPECT_EQ(role, "assistant");
  EXPECT_EQ(content, "hello \u20ac!");
  EXPECT_EQ(reasoning, "hm");
  EXPECT_EQ(pieces, engine.answer + "</s>");
  EXPECT_EQ(tokens, engine.answer.size() + 1);  // and the one that ends the text
}

TEST_F(ServiceTest, BeginsInsideWhereTheTemplateOpensThinking) {
  ScriptedOptions engine;
  engine.answer = "hm</think>yes";
  engine.endless = false;
  Start(engine);
  const Json body = Chat({{"reasoning_format", "deepseek"}, {"enable_thinking", true}}).json();
  EXPECT_EQ(body["choices"][0]["message"]["content"], "yes");
  EXPECT_EQ(body["choices"][0]["message"]["reasoning_content"], "hm");
}

// The script would go on otherwise; of what is allowed it prefers the lowest byte.
TEST_F(ServiceTest, AnswersWhatTheGrammarAllows) {
  Start();
  const auto text = [&](Json fields) {
    fields["prompt"] = "x";
    fields["max_tokens"] = 1000;
    fields["temperature"] = 0;
    const Answer answer = Complete(fields);
    EXPECT_EQ(answer.status, 200) << answer.body;
    const Json choice = answer.json()["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "stop") << answer.body;
    return choice["text"].get<std::string>();
  };
  EXPECT_EQ(text({{"regex", "abc(x|y)"}}), "abcx");
  EXPECT_EQ(text({{"structured_outputs", {{"choice", {"b)", "a(", "c"}}}}}), "a(");
  EXPECT_EQ(text({{"grammar", "root ::= \"a\" item{3} \nitem ::= \"b\" | \"q\""}}), "abbb");
  const Json schema = {{"type", "object"},
                       {"properties", {{"a", {{"enum", {"one", "two"}}}}, {"b", {{"const", 7}}}}},
                       {"required", {"a", "b"}},
                       {"additionalProperties", false}};
  EXPECT_EQ(Json::parse(text({{"guided_json", schema}})), Json({{"a", "one"}, {"b", 7}}));
  EXPECT_EQ(Json::parse(text({{"response_format",
                               {{"type", "json_schema"},
                                {"json_schema", {{"name", "x"}, {"schema", schema}}}}}})),
            Json({{"a", "one"}, {"b", 7}}));
}

// A bad grammar is a 400 that names what is wrong, and never an answer without the grammar.
TEST_F(ServiceTest, RefusesGrammarsThatItCannotEnforce) {
  Start();
  const auto format = [](bool strict) {
    return Json{{"type", "json_schema"},
                {"json_schema",
                 {{"schema", {{"type", "object"}, {"minProperties", 3}}}, {"strict", strict}}}};
  };
  const Answer strict = Chat({{"response_format", format(true)}});
  ExpectRefused(strict, "response_format.json_schema.schema");
  EXPECT_NE(strict.error().find("minProperties"), std::string::npos) << strict.error();
  const Answer loose = Chat({{"response_format", format(false)}, {"max_tokens", 1}});
  EXPECT_EQ(loose.status, 200) << loose.body;
  EXPECT_EQ(loose.Header("X-Loopspec-Ignored-Keywords"), "minProperties");
  ExpectRefused(Chat({{"regex", "("}}), "regex");
  ExpectRefused(Chat({{"grammar", "root ::= nowhere"}}), "grammar");
  ExpectRefused(Chat({{"guided_json", "{"}}), "guided_json");
  ExpectRefused(Chat({{"regex", "a"}, {"ignore_eos", true}}), "ignore_eos");
  EXPECT_EQ(Submitted(*engine_), 1);
}

// Thinking is free. Wherever among the drafts its end mark falls, here in eight tokens, the answer
// is what the grammar allows from the byte after it.
TEST_F(ServiceTest, GrammarsHoldFromTheEndOfThinking) {
  for (int length = 0; length < 16; ++length) {
    ScriptedOptions engine;
    engine.answer = std::string(static_cast<size_t>(length), 'h') + "</think>maybe";
    Start(engine);
    for (const char* decode : {"loopspec", "lookup", "ar"}) {
      for (const double temperature : {0.0, 0.01}) {
        const Answer answer = Chat({{"reasoning_format", "deepseek"},
                                    {"enable_thinking", true},
                                    {"regex", "yes|nope"},
                                    {"temperature", temperature},
                                    {"decode", decode}});
        ASSERT_EQ(answer.status, 200) << answer.body;
        const Json choice = answer.json()["choices"][0];
        EXPECT_EQ(choice["message"]["content"], "nope") << length << decode;
        if (length > 0) {
          EXPECT_EQ(choice["message"]["reasoning_content"],
                    std::string(static_cast<size_t>(length), 'h'));
        }
        EXPECT_EQ(choice["finish_reason"], "stop");
      }
    }
    const Json direct = Chat({{"regex", "yes|nope"}, {"temperature", 0}}).json();
    EXPECT_EQ(direct["choices"][0]["message"]["content"], "nope");
  }
}

TEST_F(ServiceTest, KeepsJsonValidWhateverTheModelSays) {
  ScriptedOptions engine;
  engine.answer = "\xe2\x82\xac\xff\xf0\x9f\"\\\n\x01";
  engine.answer.push_back('\0');
  Start(engine);
  for (const bool stream : {false, true}) {
    const Answer answer = Complete({{"prompt", "x"}, {"max_tokens", 100}, {"stream", stream}});
    EXPECT_TRUE(IsValidUtf8(answer.body));
    std::string text;
    if (stream) {
      for (const std::string& event : answer.Events()) {
        if (event != "[DONE]") text += Json::parse(event)["choices"][0]["text"].get<std::string>();
      }
    } else {
      text = answer.json()["choices"][0]["text"];
    }
    std::string said, expected;
    for (size_t i = 0; i < 100; ++i) said.push_back(engine.answer[i % engine.answer.size()]);
    AppendLossyUtf8(said, expected);
    EXPECT_EQ(text, expected);
  }
}

TEST_F(ServiceTest, StopsWhereAsked) {
  Start();
  const Json body = Complete({{"prompt", "x"}, {"max_tokens", 50}, {"stop", "de"}}).json();
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["choices"][0]["stop_reason"], "de");
  EXPECT_EQ(body["choices"][0]["text"], "abc");
  // Of two the one that comes first.
  const Json two = Complete({{"prompt", "x"}, {"max_tokens", 50}, {"stop", {"gh", "ef"}}}).json();
  EXPECT_EQ(two["choices"][0]["stop_reason"], "ef");
  const Json token =
      Complete({{"prompt", "x"}, {"max_tokens", 50}, {"stop_token_ids", {100}}}).json();
  EXPECT_EQ(token["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(token["choices"][0]["stop_reason"], 100);
  EXPECT_EQ(token["choices"][0]["text"], "abc");  // before it, as /openapi.json says
  EXPECT_EQ(token["usage"]["completion_tokens"], 4);
  const Json generated =
      Post(server_->port(), "/generate",
           {{"text", "x"}, {"sampling_params", {{"max_new_tokens", 50}, {"stop", "de"}}}})
          .json();
  EXPECT_EQ(generated["meta_info"]["finish_reason"], (Json{{"type", "stop"}, {"matched", "de"}}));
  const Answer stream =
      Complete({{"prompt", "x"}, {"max_tokens", 50}, {"stop", "de"}, {"stream", true}});
  const std::vector<std::string> events = stream.Events();
  EXPECT_EQ(Json::parse(events[events.size() - 2])["choices"][0]["stop_reason"], "de");
}

// The model's own end is no reason to name, unless it is asked for and would not end the text.
TEST_F(ServiceTest, NamesNoReasonForTheModelsOwnEnd) {
  ScriptedOptions engine;
  engine.endless = false;
  Start(engine);
  Json body = {{"prompt", "x"}, {"max_tokens", 50}};
  Json choice = Complete(body).json()["choices"][0];
  EXPECT_EQ(choice["text"], engine.answer);
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(choice["stop_reason"].is_null());
  body["stop_token_ids"] = {257};
  EXPECT_TRUE(Complete(body).json()["choices"][0]["stop_reason"].is_null());
  body["ignore_eos"] = true;
  EXPECT_EQ(Complete(body).json()["choices"][0]["stop_reason"], 257);
}

TEST_F(ServiceTest, SpeaksSglangsForm) {
  Start();
  Json body = Post(server_->port(), "/generate",
                   {{"text", "x"},
                    {"sampling_params", {{"max_new_tokens", 3}}},
                    {"rid", "mine"},
                    {"return_logprob", true}})
                  .json();
  EXPECT_EQ(body["text"], "abc");
  EXPECT_EQ(body["output_ids"], (std::vector<int>{97, 98, 99}));
  EXPECT_EQ(body["meta_info"]["id"], "mine");
  EXPECT_EQ(body["meta_info"]["finish_reason"], (Json{{"type", "length"}, {"length", 3}}));
  const Json& first = body["meta_info"]["output_token_logprobs"][0];
  EXPECT_LT(first[0], 0.0);
  EXPECT_EQ(first[1], 97);
  EXPECT_EQ(first[2], "a");
  EXPECT_TRUE(body["meta_info"].contains("loopspec"));
  body = Post(server_->port(), "/generate",
              {{"input_ids", {{1, 2}, {3}}}, {"sampling_params", {{"max_new_tokens", 2}}}})
             .json();
  ASSERT_EQ(body.size(), 2u);
  EXPECT_EQ(body[1]["meta_info"]["prompt_tokens"], 1);
  const Answer stream =
      Post(server_->port(), "/generate",
           {{"text", "x"}, {"sampling_params", {{"max_new_tokens", 4}}}, {"stream", true}});
  const std::vector<std::string> events = stream.Events();
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(Json::parse(events[events.size() - 2])["text"], "abcd");  // all of it so far
}

TEST_F(ServiceTest, TellsAboutTheModel) {
  options_.served_model_name = "org/name";
  Start();
  const Json models = Get(server_->port(), "/v1/models").json();
  EXPECT_EQ(models["data"][0]["id"], "org/name");
  EXPECT_EQ(models["data"][0]["max_model_len"], 4096);
  // The model does not say whether to sample: requests get OpenAI's temperature, and are told so.
  EXPECT_EQ(models["data"][0]["loopspec"]["sampling"]["temperature"], 1.0);
  EXPECT_FLOAT_EQ(models["data"][0]["loopspec"]["models_own_sampling"]["temperature"].get<float>(),
                  0.7f);
  EXPECT_EQ(Get(server_->port(), "/v1/models/org/name").json()["id"], "org/name");
  EXPECT_EQ(Get(server_->port(), "/v1/models/other").status, 404);
  EXPECT_EQ(Complete({{"prompt", "x"}, {"model", "anything"}}).json()["model"], "org/name");
  const Json tokens =
      Post(server_->port(), "/tokenize", {{"prompt", "hi"}, {"return_token_strs", true}}).json();
  EXPECT_EQ(tokens["tokens"], (std::vector<int>{256, 104, 105}));
  EXPECT_EQ(tokens["count"], 3);
  EXPECT_EQ(tokens["token_strs"][1], "h");
  EXPECT_EQ(Post(server_->port(), "/tokenize", {{"prompt", "hi"}, {"add_special_tokens", false}})
                .json()["count"],
            2);
  EXPECT_EQ(Post(server_->port(), "/detokenize", {{"tokens", {104, 105}}}).json()["prompt"], "hi");
  ExpectRefused(Post(server_->port(), "/detokenize", {{"tokens", {9999}}}), "tokens");
  EXPECT_EQ(Get(server_->port(), "/tokenizer_info").json()["eos_token"], "</s>");
  EXPECT_EQ(Get(server_->port(), "/openapi.json").json()["openapi"], "3.1.0");
  EXPECT_EQ(Get(server_->port(), "/health").status, 200);
}

TEST_F(ServiceTest, RefusesWhatDoesNotFitTheModel) {
  ScriptedOptions engine;
  engine.context = 20;
  options_.max_tokens_limit = 10;
  Start(engine);
  ExpectRefused(Complete({{"prompt", std::string(20, 'x')}}), "prompt");
  const Answer full = Complete({{"prompt", std::string(20, 'x')}});
  EXPECT_EQ(full.json()["error"]["code"], "context_length_exceeded");
  EXPECT_NE(full.error().find("21"), std::string::npos) << full.error();
  EXPECT_NE(full.error().find("20"), std::string::npos) << full.error();
  ExpectRefused(Complete({{"prompt", std::string(15, 'x')}, {"max_tokens", 9}}), "prompt");
  ExpectRefused(Complete({{"prompt", "x"}, {"max_tokens", 11}}), "max_tokens");
  ExpectRefused(Complete({{"prompt", {"x", std::string(20, 'x')}}}), "prompt[1]");
  ExpectRefused(Complete({{"prompt", {1, 259}}}), "prompt");
  ExpectRefused(Complete({{"prompt", {Json::array()}}}), "prompt");
  ExpectRefused(Complete({{"prompt", "x"}, {"logit_bias", {{"999", 1}}}}), "logit_bias");
  ExpectRefused(Complete({{"prompt", "x"}, {"depths", {3}}}), "depths");
  ExpectRefused(Complete({{"prompt", "x"}, {"depths", {2}}, {"decode", "ar"}}), "depths");
  const Answer chat = Post(server_->port(), "/v1/chat/completions",
                           {{"messages", {{{"role", "user"}, {"content", "refuse me"}}}}});
  ExpectRefused(chat, "messages");
  EXPECT_EQ(Submitted(*engine_), 0);
  EXPECT_EQ(Complete({{"prompt", "x"}, {"depths", {1, 2}}}).status, 200);
  EXPECT_EQ(service_->running(), 0);
}

TEST_F(ServiceTest, RefusesBadBodies) {
  Start();
  const auto send = [&](std::string_view body, std::string_view headers = "") {
    Client client(server_->port());
    client.Send(PostText("/v1/completions", body, headers));
    return client.ReadAnswer();
  };
  EXPECT_EQ(send("{\"prompt\": ").status, 400);
  EXPECT_EQ(send("{\"prompt\": \"\xff\"}").status, 400);
  EXPECT_EQ(send("").status, 400);
  EXPECT_EQ(send(std::string(100'000, '[')).status, 400);
  // Ten megabytes: read, understood, and too long for the model.
  std::string words;
  while (words.size() < 10 << 20) words += "word after word ";
  const Answer large = send(Json{{"prompt", words}}.dump());
  ExpectRefused(large, "prompt");
  EXPECT_EQ(send("{\"prompt\": \"x\"}", "Content-Encoding: gzip\r\n").status, 415);
  Client form(server_->port());
  form.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
      "Content-Length: 2\r\n\r\n{}");
  EXPECT_EQ(form.ReadAnswer().status, 415);
  EXPECT_EQ(Get(server_->port(), "/nowhere").status, 404);
  const Answer method = Get(server_->port(), "/v1/completions");
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.Header("Allow"), "POST");
  EXPECT_EQ(Complete({{"prompt", "x"}}).status, 200);
}

TEST_F(ServiceTest, CancelsWhenTheClientHangsUp) {
  ScriptedOptions engine;
  engine.token_seconds = 0.05;  // the whole answer takes minutes
  Start(engine);
  int expected = 0;
  for (const bool stream : {true, false}) {
    for (const bool reset : {true, false}) {
      Client client(server_->port());
      client.Send(PostText("/v1/completions",
                           Json{{"prompt", "x"}, {"max_tokens", 4000}, {"stream", stream}}.dump()));
      if (stream) {
        EXPECT_TRUE(client.ReadUntil("data:"));
      } else {
        EXPECT_TRUE(Eventually([&] { return Running(*engine_) == 1; }));
      }
      reset ? client.Reset() : client.Close();
      ++expected;
      EXPECT_TRUE(Eventually([&] { return engine_->metrics().cancelled == expected; }));
      EXPECT_TRUE(WaitIdle(*engine_, 60));
    }
  }
  EXPECT_TRUE(Eventually([&] { return service_->running() == 0; }));
  EXPECT_TRUE(Eventually([&] { return Log().find("\"cancelled\"") != std::string::npos; }));
}

TEST_F(ServiceTest, HoldsTheAnswerForSlowReaders) {
  ScriptedOptions engine;
  engine.tokens = {kScriptWord};
  engine.context = 1 << 14;
  Start(engine);
  Client slow(server_->port(), 4096);
  // 4 MB of text through a small window; the events wait and leave together.
  slow.Send(PostText("/v1/completions",
                     Json{{"prompt", "x"}, {"max_tokens", 4000}, {"stream", true}}.dump()));
  EXPECT_TRUE(slow.ReadUntil("data:"));
  EXPECT_TRUE(WaitIdle(*engine_, 60)) << "the engine waited for a client";
  EXPECT_EQ(Complete({{"prompt", "x"}, {"max_tokens", 3}}).status, 200);
  const Answer answer = slow.ReadAnswer();
  EXPECT_TRUE(answer.complete);
  const std::vector<std::string> events = answer.Events();
  EXPECT_EQ(events.back(), "[DONE]");
  size_t bytes = 0;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    bytes += Json::parse(events[i])["choices"][0]["text"].get<std::string>().size();
  }
  EXPECT_EQ(bytes, 4000 * kScriptWordBytes);
  EXPECT_LT(events.size(), 4000u);
}

TEST_F(ServiceTest, ReportsFailuresOfTheEngine) {
  ScriptedOptions engine;
  engine.fail_at = 5;
  Start(engine);
  const Answer whole = Complete({{"prompt", "x"}});
  EXPECT_EQ(whole.status, 500);
  EXPECT_EQ(whole.json()["error"]["type"], "server_error");
  engine.token_seconds = 0.02;
  engine.fail_at = 100;  // two seconds for the stream to begin
  Start(engine);
  const Answer stream = Complete({{"prompt", "x"}, {"max_tokens", 2000}, {"stream", true}});
  EXPECT_EQ(stream.status, 200);  // it had begun
  const std::vector<std::string> events = stream.Events();
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_TRUE(Json::parse(events[events.size() - 2]).contains("error"));

  engine.fail_at = 0;
  Start(engine);
  EXPECT_EQ(Complete({{"prompt", "x"}, {"stream", true}}).status, 500);  // it had not
  EXPECT_EQ(Complete({{"prompt", "x"}}).status, 200);                    // the next one
}

TEST_F(ServiceTest, SaysWhenTheQueueIsFull) {
  ScriptedOptions engine;
  engine.max_running = 1;
  engine.max_queued = 2;
  engine.token_seconds = 0.05;
  Start(engine);
  const std::string text =
      PostText("/v1/completions", Json{{"prompt", "x"}, {"max_tokens", 4000}}.dump());
  Client client(server_->port()), next(server_->port());
  client.Send(text);
  EXPECT_TRUE(Eventually([&] { return engine_->metrics().decoding == 1; }));
  next.Send(text);
  EXPECT_TRUE(Eventually([&] { return engine_->metrics().waiting == 1; }));
  // Two prompts, room for one: the first is taken back.
  const Answer answer = Complete({{"prompt", {"a", "b"}}, {"max_tokens", 4000}});
  EXPECT_EQ(answer.status, 429);
  EXPECT_EQ(answer.Header("Retry-After"), "1");
  EXPECT_EQ(answer.json()["error"]["code"], "queue_full");
  EXPECT_TRUE(Eventually([&] { return Running(*engine_) == 2; }));
  EXPECT_TRUE(Eventually([&] { return service_->running() == 2; }));
}

// What the queue can never hold is not told to come back.
TEST_F(ServiceTest, RefusesWhatTheQueueNeverHolds) {
  ScriptedOptions engine;
  engine.max_queued = 4;
  Start(engine);
  const Json four = {"a", "b", "c", "d"}, five = {"a", "b", "c", "d", "e"};
  ExpectRefused(Complete({{"prompt", five}, {"max_tokens", 2}}), "prompt");
  ExpectRefused(Complete({{"prompt", "a"}, {"n", 5}, {"max_tokens", 2}}), "n");
  ExpectRefused(Chat({{"n", 5}}), "n");
  EXPECT_EQ(Complete({{"prompt", four}, {"max_tokens", 2}}).status, 200);
}

// A text that cannot fit is refused before it is made into tokens; others go on meanwhile.
TEST_F(ServiceTest, RefusesLongTextsUnread) {
  Start();
  for (const char c : {' ', 'a', '7'}) {
    const Answer answer = Complete({{"prompt", std::string(5 << 20, c)}, {"max_tokens", 1}});
    ExpectRefused(answer, "prompt");
    EXPECT_EQ(answer.json()["error"]["code"], "context_length_exceeded");
  }
  const Answer chat =
      Post(server_->port(), "/v1/chat/completions",
           {{"messages", {{{"role", "user"}, {"content", std::string(5 << 20, ' ')}}}}});
  ExpectRefused(chat, "messages");
}

TEST_F(ServiceTest, LimitsTheTimeOfARequest) {
  ScriptedOptions engine;
  engine.token_seconds = 0.05;
  options_.request_timeout = 300ms;
  Start(engine);
  const Answer whole = Complete({{"prompt", "x"}, {"max_tokens", 1000}});
  EXPECT_EQ(whole.status, 504);
  EXPECT_EQ(whole.json()["error"]["code"], "request_timeout");
  const Answer stream = Complete({{"prompt", "x"}, {"max_tokens", 1000}, {"stream", true}});
  EXPECT_NE(stream.body.find("request_timeout"), std::string::npos);
  EXPECT_TRUE(WaitIdle(*engine_, 60));
  EXPECT_EQ(engine_->metrics().cancelled, 2);
}

TEST_F(ServiceTest, BeginsAStreamThatIsSlowToCome) {
  ScriptedOptions engine;
  engine.token_seconds = 0.05;
  engine.max_running = 1;
  options_.begin_stream_after = 50ms;
  Start(engine);
  Client before(server_->port());  // runs for minutes, alone
  before.Send(PostText("/v1/completions", Json{{"prompt", "x"}, {"max_tokens", 4000}}.dump()));
  EXPECT_TRUE(Eventually([&] { return engine_->metrics().decoding == 1; }));
  Client client(server_->port());
  client.Send(PostText("/v1/completions",
                       Json{{"prompt", "x"}, {"max_tokens", 2}, {"stream", true}}.dump()));
  EXPECT_TRUE(client.ReadUntil("200 OK"));
  // The stream is open, and its request waits behind the other one.
  EXPECT_TRUE(Eventually([&] { return engine_->metrics().waiting == 1; }));
  EXPECT_EQ(engine_->metrics().decoding, 1);
  before.Close();
  EXPECT_TRUE(client.ReadAnswer().complete);
}

TEST_F(ServiceTest, AsksForKeys) {
  options_.keys.Add("secret", "test");
  Start();
  EXPECT_EQ(Complete({{"prompt", "x"}}).status, 401);
  EXPECT_EQ(Complete({{"prompt", "x"}}).json()["error"]["code"], "invalid_api_key");
  EXPECT_EQ(Complete({{"prompt", "x"}}, "Authorization: Bearer wrong\r\n").status, 401);
  EXPECT_EQ(Complete({{"prompt", "x"}}, "Authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(Get(server_->port(), "/v1/models").status, 401);
  EXPECT_EQ(Get(server_->port(), "/health").status, 200);
}

// Strangers cannot fill the room for bodies: they are refused before theirs is read.
TEST_F(ServiceTest, AsksForKeysBeforeTheBody) {
  options_.keys.Add("secret", "test");
  Start();
  std::vector<Client> strangers;
  for (int i = 0; i < 16; ++i) {
    strangers.emplace_back(server_->port());
    strangers.back().Send(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 16000000\r\n\r\n");
  }
  for (Client& stranger : strangers) {
    const Answer answer = stranger.ReadAnswer();
    EXPECT_EQ(answer.status, 401);
    EXPECT_EQ(answer.Header("WWW-Authenticate"), "Bearer");
    EXPECT_FALSE(answer.Header("X-Request-Id").empty());
  }
  EXPECT_EQ(server_->counts().body_bytes, 0);
  EXPECT_EQ(Complete({{"prompt", "x"}}, "Authorization: Bearer secret\r\n").status, 200);
  EXPECT_TRUE(Eventually([&] { return Log().find("\"status\":401") != std::string::npos; }));
}

TEST_F(ServiceTest, AllowsOtherOriginsOnlyWhenAsked) {
  Start();
  EXPECT_EQ(
      Get(server_->port(), "/health", "Origin: http://a\r\n").Header("Access-Control-Allow-Origin"),
      "");
  options_.access.origins = {"http://a"};
  Start();
  EXPECT_EQ(
      Get(server_->port(), "/health", "Origin: http://a\r\n").Header("Access-Control-Allow-Origin"),
      "http://a");
  EXPECT_EQ(
      Get(server_->port(), "/health", "Origin: http://b\r\n").Header("Access-Control-Allow-Origin"),
      "");
  Client preflight(server_->port());
  preflight.Send(
      "OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: http://a\r\n"
      "Access-Control-Request-Method: POST\r\n\r\n");
  const Answer answer = preflight.ReadAnswer();
  EXPECT_EQ(answer.status, 204);
  EXPECT_NE(answer.Header("Access-Control-Allow-Headers").find("Authorization"), std::string::npos);
}

TEST_F(ServiceTest, IsNotReadyWhileLoadingOrDraining) {
  service_ = std::make_unique<Service>(options_);
  server_ = std::make_unique<HttpServer>(http_, *service_);
  EXPECT_EQ(Get(server_->port(), "/health").status, 503);
  EXPECT_EQ(Complete({{"prompt", "x"}}).json()["error"]["code"], "loading");
  EXPECT_EQ(Get(server_->port(), "/metrics").status, 200);
  ScriptedOptions engine;
  engine.token_seconds = 0.01;
  engine_ = MakeScriptedEngine(engine);
  service_->SetEngine(engine_);
  EXPECT_EQ(Get(server_->port(), "/health").status, 200);

  Client running(server_->port());
  running.Send(PostText("/v1/completions", Json{{"prompt", "x"}, {"max_tokens", 50}}.dump()));
  EXPECT_TRUE(Eventually([&] { return Submitted(*engine_) == 1; }));
  service_->BeginDrain();
  EXPECT_EQ(Get(server_->port(), "/health").status, 503);
  EXPECT_EQ(Complete({{"prompt", "x"}}).json()["error"]["code"], "draining");
  EXPECT_TRUE(service_->WaitIdle(60s));
  EXPECT_EQ(running.ReadAnswer().status, 200);  // what ran was finished
  running.Close();
  EXPECT_TRUE(server_->Stop(60s));
}

// A stream that the server cuts off says so, and so does the log.
TEST_F(ServiceTest, TellsClientsThatItCutsThemOff) {
  ScriptedOptions engine;
  engine.token_seconds = 0.05;
  Start(engine);
  const Json body = {{"prompt", "x"}, {"max_tokens", 4000}};
  Json streamed = body;
  streamed["stream"] = true;
  Client stream(server_->port()), whole(server_->port());
  stream.Send(PostText("/v1/completions", streamed.dump()));
  whole.Send(PostText("/v1/completions", body.dump()));
  EXPECT_TRUE(stream.ReadUntil("data:"));
  EXPECT_TRUE(Eventually([&] { return service_->running() == 2; }));
  EXPECT_TRUE(Eventually([&] { return Submitted(*engine_) == 2; }));
  service_->BeginDrain();
  EXPECT_FALSE(service_->WaitIdle(10ms));
  service_->CutOff();
  const Answer cut = stream.ReadAnswer();
  EXPECT_TRUE(cut.complete);
  const std::vector<std::string> events = cut.Events();
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(Json::parse(events[events.size() - 2])["error"]["code"], "draining");
  const Answer answer = whole.ReadAnswer();
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.json()["error"]["code"], "draining");
  EXPECT_TRUE(service_->WaitIdle(60s));
  EXPECT_TRUE(Eventually([&] {
    const std::string log = Log();
    return log.find("\"draining\"") != log.rfind("\"draining\"");
  }));
  EXPECT_EQ(Log().find("hung up"), std::string::npos);
}

// The value of a metric; -1 when it is not there.
double Metric(const std::string& text, const std::string& name, const std::string& labels = "") {
  const std::string begin =
      "\n" + name + "{" + (labels.empty() ? "" : labels + ",") + "model_name=\"fake\"";
  const size_t at = text.find(begin);
  if (at == std::string::npos) return -1;
  return std::stod(text.substr(text.find(' ', at)));
}

TEST_F(ServiceTest, CountsForPrometheus) {
  Start();
  Complete({{"prompt", "x"}, {"max_tokens", 30}});
  // The answer's end reaches the client before the engine's thread has counted it.
  EXPECT_TRUE(Eventually([&] { return engine_->metrics().steps > 0 && Running(*engine_) == 0; }));
  const Answer answer = Get(server_->port(), "/metrics");
  EXPECT_EQ(answer.Header("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  const auto value = [&](const std::string& name, const std::string& labels = "") {
    const double found = Metric(answer.body, name, labels);
    EXPECT_GE(found, 0) << name << " is not there:\n" << answer.body;
    return found;
  };
  EXPECT_EQ(value("vllm:num_requests_running"), 0);
  EXPECT_EQ(value("vllm:num_requests_waiting"), 0);
  EXPECT_EQ(value("vllm:generation_tokens_total"), 30);
  EXPECT_EQ(value("vllm:prompt_tokens_total"), 2);
  EXPECT_EQ(value("vllm:time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(value("vllm:inter_token_latency_seconds_count"), 29);
  EXPECT_EQ(value("vllm:request_success_total", "finished_reason=\"length\""), 1);
  EXPECT_EQ(value("loopspec:cells_usage"), 0);
  const EngineMetrics engine = engine_->metrics();
  EXPECT_EQ(value("vllm:prefix_cache_queries_total"), static_cast<double>(engine.prompt_tokens));
  EXPECT_GT(engine.prompt_tokens, 0);
  // What the decoder did with its drafts adds up.
  const double first = value("loopspec:accepted_tokens_by_proposal_total", "proposal=\"0\"");
  const double second = value("loopspec:accepted_tokens_by_proposal_total", "proposal=\"1\"");
  const double accepted = value("vllm:spec_decode_num_accepted_tokens_total");
  EXPECT_GT(first, 0);
  EXPECT_GT(second, 0);
  EXPECT_EQ(first + second, accepted);
  EXPECT_EQ(accepted + value("loopspec:fallback_tokens_total"), 30);
  EXPECT_EQ(value("vllm:spec_decode_num_drafts_total"), 30);
  EXPECT_GE(value("vllm:spec_decode_num_draft_tokens_total"), accepted);
  EXPECT_GT(value("loopspec:early_tokens_total"), 0);  // the answer repeats itself
  EXPECT_EQ(value("loopspec:rows_per_step_count"), static_cast<double>(engine.steps));
  EXPECT_EQ(value("loopspec:rows_per_step_sum"), static_cast<double>(engine.rows));
  EXPECT_NE(answer.body.find("loopspec:rows_per_step_bucket{model_name=\"fake\",le=\"4\"}"),
            std::string::npos)
      << answer.body;
}

TEST_F(ServiceTest, CountsFailuresApart) {
  ScriptedOptions engine;
  engine.token_seconds = 0.05;
  options_.request_timeout = 300ms;
  Start(engine);
  EXPECT_EQ(Complete({{"prompt", "x"}, {"max_tokens", 4000}}).status, 504);
  options_.request_timeout = 600s;
  Start(engine);
  {
    Client client(server_->port());
    client.Send(PostText("/v1/completions", Json{{"prompt", "x"}, {"max_tokens", 4000}}.dump()));
    EXPECT_TRUE(Eventually([&] { return Running(*engine_) == 1; }));
  }
  std::string text;
  EXPECT_TRUE(Eventually([&] {
    text = Get(server_->port(), "/metrics").body;
    return Metric(text, "loopspec:request_failure_total", "reason=\"cancelled\"") == 1;
  }));
  EXPECT_EQ(text.find("vllm:request_success_total{"), std::string::npos);
  EXPECT_EQ(Complete({{"prompt", "x"}, {"max_tokens", 1}}).status, 200);
  EXPECT_TRUE(Eventually([&] {
    text = Get(server_->port(), "/metrics").body;
    return Metric(text, "vllm:request_success_total", "finished_reason=\"length\"") == 1;
  }));
}

// Pages that are only kept for later are not in use.
TEST_F(ServiceTest, CountsPagesThatRequestsHold) {
  Start();
  Complete({{"prompt", std::string(1000, 'p')}, {"max_tokens", 2}});
  std::string text;
  EXPECT_TRUE(Eventually([&] {
    text = Get(server_->port(), "/metrics").body;
    return Metric(text, "vllm:kv_cache_usage_perc") == 0;
  }));
  EXPECT_GT(Metric(text, "loopspec:prefix_cache_usage"), 0);
  const EngineMetrics now = engine_->metrics();
  const auto memory = [&](const char* part) {
    return Metric(text, "loopspec:memory_bytes", fmt::format("part=\"{}\"", part));
  };
  EXPECT_EQ(memory("prefix_cache"), static_cast<double>(now.pages_evictable * now.page_bytes));
  EXPECT_GT(now.page_bytes, 0);
  EXPECT_EQ(memory("key_values"), 0);
  EXPECT_EQ(memory("waiting_text"), 0);
  EXPECT_EQ(memory("request_bodies"), 0);
  service_->SetMemory(serve::MemoryCounts::Now());
  text = Get(server_->port(), "/metrics").body;
  EXPECT_GT(memory("anonymous"), 0);
  EXPECT_GT(memory("files"), 0);
  EXPECT_NE(service_->memory().Text().find("cached prefixes"), std::string::npos);
  EXPECT_EQ(now.pages_evictable, 1000 / 64);
  EXPECT_EQ(now.pages_free + now.pages_evictable, now.pages);
}

// What never became a request is in the log and in the metrics too.
TEST_F(ServiceTest, CountsErrorsBelowTheApi) {
  http_.body_limit = 1000;
  Start();
  const std::pair<const char*, int> cases[] = {
      {"GET\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1001\r\n\r\n", 413},
      {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
       "Expect: wonders\r\n\r\n",
       417},
      {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", 501}};
  for (const auto& [text, status] : cases) {
    Client client(server_->port());
    client.Send(text);
    EXPECT_EQ(client.ReadAnswer().status, status);
    const std::string metrics = Get(server_->port(), "/metrics").body;
    EXPECT_EQ(Metric(metrics, "loopspec:http_responses_total", fmt::format("code=\"{}\"", status)),
              1);
    EXPECT_TRUE(Eventually(
        [&] { return Log().find(fmt::format("\"status\":{}", status)) != std::string::npos; }));
  }
}

TEST_F(ServiceTest, LogsRequestsWithoutTheirText) {
  Start();
  Complete({{"prompt", "a secret"}, {"max_tokens", 3}}, "X-Request-Id: my-id.1\r\n");
  // The answer reaches the client before its line is in the log; the next one's must come after.
  EXPECT_TRUE(Eventually([&] { return Log().find("my-id.1") != std::string::npos; }));
  const Answer bad = Complete({{"prompt", 1}}, "X-Request-Id: bad id\r\n");
  EXPECT_NE(bad.Header("X-Request-Id"), "bad id");
  std::istringstream lines(Log());
  std::string line;
  std::getline(lines, line);
  const Json entry = Json::parse(line);
  EXPECT_EQ(entry["request_id"], "my-id.1");
  EXPECT_EQ(entry["status"], 200);
  EXPECT_EQ(entry["completion_tokens"], 3);
  EXPECT_EQ(entry["outcome"], "length");
  EXPECT_EQ(Log().find("secret"), std::string::npos);
}

TEST_F(ServiceTest, LogsPromptsWhenAsked) {
  options_.log.prompts = true;
  options_.log.json = false;
  Start();
  Complete({{"prompt", "not so\nsecret"}, {"max_tokens", 3}});
  EXPECT_TRUE(Eventually([&] { return Log().find("\"not so\\nsecret\"") != std::string::npos; }));
}

TEST_F(ServiceTest, OutlivesAFullDiskUnderTheLog) {
  options_.log.file = "/dev/full";
  Start();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Complete({{"prompt", "x"}}).status, 200);
  EXPECT_TRUE(Eventually([&] {
    return Get(server_->port(), "/metrics")
               .body.find("log_lines_lost_total{model_name=\"fake\"} 3") != std::string::npos;
  }));
}

// The files that a text asks for as /page/NAME or ./NAME.
std::vector<std::string> NamedFiles(const std::string& text) {
  std::vector<std::string> names;
  for (const std::string prefix : {"/page/", "./"}) {
    for (size_t at = text.find(prefix); at != std::string::npos; at = text.find(prefix, at + 1)) {
      const size_t begin = at + prefix.size();
      const size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz_.", begin);
      const std::string name = text.substr(begin, end - begin);
      if (name.ends_with(".js") || name.ends_with(".css") || name.ends_with(".svg"))
        names.push_back(name);
    }
  }
  return names;
}

// The page comes from the binary alone, without a key, and lets in nothing from elsewhere.
TEST_F(ServiceTest, ServesThePage) {
  options_.assets = serve::PageAssets();
  options_.keys.Add("a-key", "the test");
  Start();
  const Answer page = Get(server_->port(), "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.Header("Content-Type"), "text/html; charset=utf-8");
  EXPECT_NE(page.Header("Content-Security-Policy").find("default-src 'none'"), std::string::npos);
  EXPECT_NE(page.body.find("<title>loopspec</title>"), std::string::npos);
  std::set<std::string> files = {"index.html"};
  for (const serve::Asset& asset : options_.assets) {
    const Answer answer = Get(server_->port(), asset.path);
    EXPECT_EQ(answer.body, asset.body);
    EXPECT_EQ(answer.Header("X-Content-Type-Options"), "nosniff");
    if (asset.path.ends_with(".svg")) continue;  // names its format
    std::string text = asset.body;
    constexpr std::string_view kMathMl =
        "'http://www.w3.org/1998/Math/MathML'";  // a name, not a link
    if (const size_t at = text.find(kMathMl); at != std::string::npos)
      text.erase(at, kMathMl.size());
    for (const char* word :
         {"http:", "https:", "innerHTML", "insertAdjacentHTML", "document.write"})
      EXPECT_EQ(text.find(word), std::string::npos) << asset.path << " has " << word;
    for (const std::string& name : NamedFiles(asset.body)) files.insert(name);
  }
  EXPECT_EQ(files.size(), options_.assets.size());
  for (const std::string& file : files) {
    if (file == "index.html") continue;
    EXPECT_EQ(Get(server_->port(), "/page/" + file).status, 200) << file;
  }
}

TEST_F(ServiceTest, ManyClientsAtOnceAndNothingIsLeft) {
  ScriptedOptions engine;
  engine.token_seconds = 0.001;
  Start(engine);
  std::vector<std::thread> threads;
  std::atomic<int> finished{0}, left{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        Client client(server_->port());
        const Json body = {{"prompt", "x"}, {"max_tokens", 20 + i}, {"stream", i % 2 == 0}};
        client.Send(PostText("/v1/completions", body.dump()));
        if ((i + t) % 5 == 0) {
          client.Receive(0.005);
          i % 2 == 0 ? client.Close() : client.Reset();
          ++left;
        } else {
          EXPECT_TRUE(client.ReadAnswer().complete);
          ++finished;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(finished + left, 200);
  EXPECT_TRUE(WaitIdle(*engine_, 60));
  EXPECT_TRUE(Eventually([&] { return service_->running() == 0; }));
  EXPECT_TRUE(Eventually([&] { return server_->counts().open == 0; }));
}

}  // namespace
}  // namespace loopspec::test

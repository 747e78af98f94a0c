// /v1/messages and /v1/responses over HTTP: the real engine behind them, over a backend that says
// what a test wants.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "serve/http/server.h"
#include "serve/server/service.h"
#include "tests/serve/client.h"
#include "tests/serve/part_support.h"
#include "tests/support/scripted_engine.h"

namespace loopspec::test {
namespace {

const Json kHello = Json::array({{{"role", "user"}, {"content", "hello"}}});

class AgentApisTest : public testing::Test {
 protected:
  AgentApisTest() { options_.log.file = "/dev/null"; }

  void Start(const ScriptedOptions& engine = {}) {
    service_ = std::make_unique<serve::Service>(options_);
    server_ = std::make_unique<serve::HttpServer>(PatientHttp(), *service_);
    service_->SetEngine(MakeScriptedEngine(engine));
  }
  Answer Messages(Json fields, std::string_view headers = "") {
    if (!fields.contains("messages")) fields["messages"] = kHello;
    if (!fields.contains("max_tokens")) fields["max_tokens"] = 12;
    return Post(server_->port(), "/v1/messages", fields, headers);
  }
  Answer Count(Json fields) { return Post(server_->port(), "/v1/messages/count_tokens", fields); }
  Answer Respond(Json fields) {
    if (!fields.contains("input")) fields["input"] = "hello";
    return Post(server_->port(), "/v1/responses", fields);
  }

  serve::ServiceOptions options_;
  std::unique_ptr<serve::Service> service_;
  std::unique_ptr<serve::HttpServer> server_;
};

TEST_F(AgentApisTest, MessagesAnswer) {
  Start();
  const Answer answer = Messages({{"model", "whatever-the-client-says"}});
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json body = answer.json();
  EXPECT_EQ(body["content"][0]["text"], "abcdefghijab");
  EXPECT_EQ(body["stop_reason"], "max_tokens");
  EXPECT_EQ(body["model"], "fake");
  EXPECT_EQ(body["usage"]["output_tokens"], 12);
  EXPECT_TRUE(answer.Header("X-Loopspec-Max-Tokens").empty());

  const Json stopped = Messages({{"stop_sequences", {"ef"}}}).json();
  EXPECT_EQ(stopped["content"][0]["text"], "abcd");
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "ef");
}

TEST_F(AgentApisTest, StreamsAreWhatTheWholeAnswerIs) {
  ScriptedOptions engine;
  engine.answer = "<think>so</think>It is 5.";
  engine.endless = false;
  Start(engine);
  std::string text, thinking;
  const Answer streamed = Messages({{"stream", true}, {"max_tokens", 100}});
  EXPECT_EQ(streamed.Header("Content-Type"), "text/event-stream; charset=utf-8");
  for (const Json& event : NamedEvents(streamed.body)) {
    if (event["type"] != "content_block_delta") continue;
    text += event["delta"].value("text", "");
    thinking += event["delta"].value("thinking", "");
  }
  EXPECT_EQ(text, "It is 5.");
  EXPECT_EQ(thinking, "so");
  const Json whole = Messages({{"max_tokens", 100}}).json();
  EXPECT_EQ(whole["content"][0]["thinking"], thinking);
  EXPECT_EQ(whole["content"][1]["text"], text);
  EXPECT_EQ(whole["stop_reason"], "end_turn");

  const auto events = NamedEvents(Respond({{"stream", true}}).body);
  EXPECT_EQ(events.front()["type"], "response.created");
  ASSERT_EQ(events.back()["type"], "response.completed");
  const Json last = events.back()["response"];
  EXPECT_EQ(last["id"], events.front()["response"]["id"]);
  const Json response = Respond({{"metadata", {{"a", "b"}}}}).json();
  EXPECT_EQ(response["output"][0]["content"], last["output"][0]["content"]);
  EXPECT_EQ(response["output"][1]["content"][0]["text"], "It is 5.");
  EXPECT_EQ(response["output"][1]["content"], last["output"][1]["content"]);
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["metadata"]["a"], "b");
  EXPECT_GT(response["usage"]["output_tokens_details"]["reasoning_tokens"], 0);
}

// A stop string or a stop token in the arguments of a call ends the answer, but makes no call.
TEST_F(AgentApisTest, CallsThatAreStoppedAreNotComplete) {
  ScriptedOptions engine;
  engine.answer = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 2}}\n</tool_call>";
  engine.endless = false;
  Start(engine);
  const Json schema = {{"type", "object"},
                       {"properties", {{"a", {{"type", "integer"}, {"maximum", 9}}}}},
                       {"required", {"a"}}};
  const Json tool = {{"type", "function"}, {"function", {{"name", "add"}, {"parameters", schema}}}};
  Json chat = {{"messages", kHello}, {"tools", Json::array({tool})}, {"max_tokens", 500}};
  const auto choice = [&] {
    return Post(server_->port(), "/v1/chat/completions", chat).json()["choices"][0];
  };
  EXPECT_EQ(choice()["finish_reason"], "tool_calls");
  chat["stop"] = "</tool_call>";  // behind them
  EXPECT_EQ(choice()["finish_reason"], "tool_calls");
  chat["stop"] = "}";
  const Json stopped = choice();
  EXPECT_EQ(stopped["finish_reason"], "stop");
  EXPECT_EQ(stopped["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\": 2");

  // The token of the closing brace, which the scripted tokenizer has as a byte.
  const Json ids =
      Post(server_->port(), "/tokenize", {{"prompt", "}"}, {"add_special_tokens", false}})
          .json()["tokens"];
  ASSERT_EQ(ids.size(), 1u);
  const Json message =
      Messages({{"max_tokens", 500},
                {"stop_token_ids", ids},
                {"tools", Json::array({{{"name", "add"}, {"input_schema", schema}}})}})
          .json();
  EXPECT_EQ(message["content"][0]["name"], "add") << message;
  EXPECT_EQ(message["stop_reason"], "end_turn");
  const Json response =
      Respond({{"stop_token_ids", ids},
               {"tools",
                Json::array({{{"type", "function"}, {"name", "add"}, {"parameters", schema}}})}})
          .json();
  EXPECT_EQ(response["output"][0]["type"], "function_call") << response;
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
}

TEST_F(AgentApisTest, CallsComeAsTheApisHaveThem) {
  ScriptedOptions engine;
  engine.answer =
      "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"b\": 1, \"a\": 2}}\n</tool_call>";
  engine.endless = false;
  Start(engine);
  const Json digit = {{"type", "integer"}, {"minimum", 0}, {"maximum", 9}};
  const std::string schema = R"({"type":"object","properties":{"b":)" + digit.dump() + R"(,"a":)" +
                             digit.dump() + R"(},"required":["b","a"]})";
  const auto body = [&](const std::string& fields, const char* key) {
    return "{" + fields + R"(,"tools":[{"type":)" +
           (key == std::string("parameters") ? R"("function")" : R"("custom")") +
           R"(,"name":"add","description":"Adds.",")" + key + "\":" + schema + "}]}";
  };
  const auto post = [&](const char* path, const std::string& text) {
    Client client(server_->port());
    client.Send(PostText(path, text));
    return client.ReadAnswer();
  };
  const std::string messages =
      R"("messages":[{"role":"user","content":"2 + 1?"}],"max_tokens":500)";
  const std::string streamed = R"(,"stream":true)";
  const Answer message = post("/v1/messages", body(messages, "input_schema"));
  ASSERT_EQ(message.status, 200) << message.body;
  const Json block = message.json()["content"][0];
  EXPECT_EQ(block["type"], "tool_use") << message.body;
  EXPECT_EQ(block["name"], "add");
  EXPECT_EQ(block["input"], (Json{{"a", 2}, {"b", 1}}));
  EXPECT_EQ(message.json()["stop_reason"], "tool_use");
  std::string pieces;
  for (const Json& event :
       NamedEvents(post("/v1/messages", body(messages + streamed, "input_schema")).body)) {
    if (event["type"] == "content_block_delta")
      pieces += event["delta"]["partial_json"].get<std::string>();
  }
  EXPECT_EQ(Json::parse(pieces), block["input"]);

  const Answer response = post("/v1/responses", body(R"("input":"2 + 1?")", "parameters"));
  ASSERT_EQ(response.status, 200) << response.body;
  const Json item = response.json()["output"][0];
  EXPECT_EQ(item["type"], "function_call") << response.body;
  EXPECT_EQ(Json::parse(item["arguments"].get<std::string>()), block["input"]);
  const Json last =
      NamedEvents(post("/v1/responses", body(R"("input":"2 + 1?")" + streamed, "parameters")).body)
          .back();
  EXPECT_EQ(last["type"], "response.completed");
  EXPECT_EQ(last["response"]["output"][0]["arguments"], item["arguments"]);

  // Tools are part of what is counted.
  const Json with = post("/v1/messages/count_tokens",
                         body(R"("messages":[{"role":"user","content":"2 + 1?"}])", "input_schema"))
                        .json();
  const Json usage = message.json()["usage"];
  EXPECT_EQ(with["input_tokens"].get<int>(),
            usage["input_tokens"].get<int>() + usage["cache_read_input_tokens"].get<int>());
  EXPECT_GT(with["input_tokens"], 100);
}

// The prompt that is counted is the one that is computed.
TEST_F(AgentApisTest, CountsAreExact) {
  Start();
  const Json bodies[] = {
      {{"messages", kHello}},
      {{"messages", kHello}, {"system", "You are brief."}},
      {{"messages",
        {{{"role", "user"}, {"content", "a b c"}},
         {{"role", "assistant"}, {"content", {{{"type", "text"}, {"text", "d"}}}}},
         {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "e"}}}}}}},
       {"system",
        {{{"type", "text"}, {"text", "x-anthropic-billing-header: 1"}},
         {{"type", "text"}, {"text", "You are long."}}}}}};
  for (const Json& body : bodies) {
    const Answer counted = Count(body);
    ASSERT_EQ(counted.status, 200) << counted.body;
    const Json usage = Messages(body).json()["usage"];
    EXPECT_EQ(counted.json()["input_tokens"].get<int>(),
              usage["input_tokens"].get<int>() + usage["cache_read_input_tokens"].get<int>());
    EXPECT_EQ(counted.json().size(), 1u);
  }
}

TEST_F(AgentApisTest, WhatTheContextDoesNotHoldIsCut) {
  ScriptedOptions engine;
  engine.context = 64;
  Start(engine);
  const int prompt = Count({{"messages", kHello}}).json()["input_tokens"];
  const Answer answer = Messages({{"max_tokens", 32000}});
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.Header("X-Loopspec-Max-Tokens"), std::to_string(64 - prompt));
  EXPECT_EQ(answer.json()["usage"]["output_tokens"], 64 - prompt);
  EXPECT_EQ(answer.json()["stop_reason"], "max_tokens");
  const Answer response = Respond({{"max_output_tokens", 32000}});
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.json()["max_output_tokens"], 64 - prompt);
  EXPECT_EQ(response.json()["status"], "incomplete");
  EXPECT_EQ(response.Header("X-Loopspec-Max-Tokens"), std::to_string(64 - prompt));
  // A chat's clients expect to be told.
  const Answer chat =
      Post(server_->port(), "/v1/chat/completions", {{"messages", kHello}, {"max_tokens", 32000}});
  EXPECT_EQ(chat.status, 400);
  // A prompt that leaves no room is refused in words that clients look for.
  const Answer full =
      Messages({{"messages", {{{"role", "user"}, {"content", std::string(100, 'x')}}}}});
  EXPECT_EQ(full.status, 400);
  EXPECT_TRUE(full.error().starts_with("prompt is too long: ")) << full.body;
}

TEST_F(AgentApisTest, TheServersOwnLimitCutsToo) {
  options_.max_tokens_limit = 7;
  Start();
  EXPECT_EQ(Messages({{"max_tokens", 32000}}).json()["usage"]["output_tokens"], 7);
  EXPECT_EQ(Respond({}).json()["usage"]["output_tokens"], 7);
}

TEST_F(AgentApisTest, PrefixesAreFoundAgain) {
  Start();
  const std::string system(600, 's');
  const auto ask = [&](int number) {
    return Messages({{"system",
                      {{{"type", "text"},
                        {"text", fmt::format("x-anthropic-billing-header: {}", number)}},
                       {{"type", "text"}, {"text", system}}}}})
        .json()["usage"];
  };
  EXPECT_EQ(ask(1)["cache_read_input_tokens"], 0);
  EXPECT_GT(ask(2)["cache_read_input_tokens"], 500);
}

TEST_F(AgentApisTest, ErrorsHaveTheFormOfTheirApi) {
  Start();
  const Answer bad = Messages({{"temperature", "hot"}});
  EXPECT_EQ(bad.status, 400);
  EXPECT_EQ(bad.json()["type"], "error");
  EXPECT_EQ(bad.json()["error"]["type"], "invalid_request_error");
  EXPECT_EQ(Respond({{"temperature", "hot"}}).param(), "temperature");
  EXPECT_EQ(Get(server_->port(), "/v1/messages").json()["type"], "error");
  EXPECT_EQ(Respond({{"previous_response_id", "resp_1"}}).param(), "previous_response_id");
  EXPECT_EQ(Respond({{"input", std::string(100'000, 'a')}}).param(), "input");
  const Answer ignored = Messages({{"novel", 1}});
  EXPECT_EQ(ignored.Header("X-Loopspec-Ignored"), "novel");
  service_->BeginDrain();
  EXPECT_EQ(Messages({}).json()["error"]["type"], "overloaded_error");
}

TEST_F(AgentApisTest, FailuresInAStreamHaveTheFormOfTheirApi) {
  ScriptedOptions engine;
  engine.fail_at = 5;
  engine.token_seconds = 0.01;
  Start(engine);
  const auto messages = NamedEvents(Messages({{"stream", true}}).body);
  EXPECT_EQ(messages.back()["type"], "error");
  EXPECT_EQ(messages.back()["error"]["type"], "api_error");
}

TEST_F(AgentApisTest, FailuresInAResponse) {
  ScriptedOptions engine;
  engine.fail_at = 5;
  engine.token_seconds = 0.01;
  Start(engine);
  const auto events = NamedEvents(Respond({{"stream", true}}).body);
  EXPECT_EQ(events.back()["type"], "response.failed");
  EXPECT_EQ(events.back()["response"]["status"], "failed");
}

TEST_F(AgentApisTest, KeysComeInEitherHeader) {
  options_.keys.Add("secret", "test");
  Start();
  const Answer none = Messages({});
  EXPECT_EQ(none.status, 401);
  EXPECT_EQ(none.json()["error"]["type"], "authentication_error");
  EXPECT_EQ(Messages({}, "X-Api-Key: wrong\r\n").status, 401);
  EXPECT_EQ(Messages({}, "X-Api-Key: secret\r\n").status, 200);
  EXPECT_EQ(Messages({}, "Authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(Messages({}, "Authorization: Bearer stale\r\nX-Api-Key: secret\r\n").status, 200);
  EXPECT_EQ(Get(server_->port(), "/v1/models", "x-api-key: secret\r\n").status, 200);
  EXPECT_EQ(Post(server_->port(), "/v1/responses", {{"input", "hi"}}).status, 401);
}

}  // namespace
}  // namespace loopspec::test

// Calls of tools over HTTP: the real engine behind it, over a backend that says what a test wants.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "serve/http/server.h"
#include "serve/server/service.h"
#include "tests/serve/client.h"
#include "tests/support/scripted_engine.h"

namespace loopspec::test {
namespace {

const Json kTools = Json::parse(R"([
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties":
        {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}},
    {"type": "function", "function": {"name": "now"}}])");

std::string Call(const std::string& name, const std::string& arguments) {
  return "<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": " + arguments +
         "}\n</tool_call>";
}

class ToolsTest : public testing::Test {
 protected:
  // A server whose model says this and ends.
  void Say(const std::string& answer) {
    server_.reset();
    serve::ServiceOptions options;
    options.log.file = "/dev/null";
    service_ = std::make_unique<serve::Service>(options);
    server_ = std::make_unique<serve::HttpServer>(PatientHttp(), *service_);
    ScriptedOptions engine;
    engine.answer = answer;
    engine.endless = false;
    service_->SetEngine(MakeScriptedEngine(engine));
  }
  ~ToolsTest() override { server_.reset(); }

  Answer Ask(Json fields) {
    if (!fields.contains("messages")) fields["messages"] = {{{"role", "user"}, {"content", "hi"}}};
    if (!fields.contains("tools")) fields["tools"] = kTools;
    if (!fields.contains("temperature")) fields["temperature"] = 0;
    return Post(server_->port(), "/v1/chat/completions", fields);
  }
  Json Choice(const Json& fields) {
    const Answer answer = Ask(fields);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json()["choices"][0];
  }
  void ExpectRefused(const Json& fields, const std::string& param) {
    const Answer answer = Ask(fields);
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_EQ(answer.json()["error"]["param"], param) << answer.body;
  }

  std::unique_ptr<serve::Service> service_;
  std::unique_ptr<serve::HttpServer> server_;
};

TEST_F(ToolsTest, CallsComeApartFromTheText) {
  Say("I add.\n" + Call("add", R"({"a": 1, "b": 2})") + "\n" + Call("now", "{}"));
  const Json choice = Choice({{"max_tokens", 500}});
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  const Json& message = choice["message"];
  EXPECT_EQ(message["content"], "I add.");
  ASSERT_EQ(message["tool_calls"].size(), 2u);
  EXPECT_EQ(message["tool_calls"][0]["type"], "function");
  EXPECT_EQ(message["tool_calls"][0]["function"]["name"], "add");
  EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], R"({"a": 1, "b": 2})");
  EXPECT_EQ(message["tool_calls"][1]["function"]["name"], "now");
  EXPECT_NE(message["tool_calls"][0]["id"], message["tool_calls"][1]["id"]);
  EXPECT_EQ(message["tool_calls"][0]["id"].get<std::string>().find("call_"), 0u);

  Say("Nothing to call.");
  const Json plain = Choice({{"max_tokens", 500}});
  EXPECT_EQ(plain["finish_reason"], "stop");
  EXPECT_EQ(plain["message"]["content"], "Nothing to call.");
  EXPECT_FALSE(plain["message"].contains("tool_calls"));
}

TEST_F(ToolsTest, StreamsSayWhatTheWholeAnswerSays) {
  Say("So:" + Call("add", R"({"a": 1, "b": 22})") + Call("now", "{}"));
  const Json whole = Choice({{"max_tokens", 500}})["message"];
  std::string content, finish;
  Json calls = Json::array();
  for (const std::string& text : Ask({{"max_tokens", 500}, {"stream", true}}).Events()) {
    if (text == "[DONE]") continue;
    const Json choice = Json::parse(text)["choices"][0];
    const Json& delta = choice["delta"];
    if (delta.contains("content") && delta["content"].is_string())
      content += delta["content"].get<std::string>();
    if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
    if (!delta.contains("tool_calls")) continue;
    for (const Json& piece : delta["tool_calls"]) {
      const size_t index = piece["index"];
      ASSERT_LE(index, calls.size());
      const bool begins = index == calls.size();
      EXPECT_EQ(piece.contains("id"), begins) << text;
      EXPECT_EQ(piece["function"].contains("name"), begins) << text;
      if (begins) {
        calls.push_back(piece);
        calls.back().erase("index");
      } else {
        std::string& all = calls[index]["function"]["arguments"].get_ref<std::string&>();
        all += piece["function"]["arguments"].get<std::string>();
      }
    }
  }
  EXPECT_EQ(finish, "tool_calls");
  EXPECT_EQ(content, whole["content"].get<std::string>());
  ASSERT_EQ(calls.size(), 2u);
  for (size_t i = 0; i < calls.size(); ++i)
    EXPECT_EQ(calls[i]["function"], whole["tool_calls"][i]["function"]);
}

// The grammar of calls waits for the end of thinking that the answer opens, and so does their
// reader: what looks like a call before that is a thought.
TEST_F(ToolsTest, ThinkingThatTheAnswerOpensHasNoCalls) {
  const std::string thought = "I could " + Call("subtract", R"({"a": "one"})");
  Say("<think>" + thought + "</think>\n" + Call("now", "{}"));
  const Json fields = {{"max_tokens", 500}, {"reasoning_format", "deepseek"}};
  const Json message = Choice(fields)["message"];
  EXPECT_EQ(message["reasoning_content"], thought);
  ASSERT_EQ(message["tool_calls"].size(), 1u) << message;
  EXPECT_EQ(message["tool_calls"][0]["function"]["name"], "now");
}

// The model would say something else; what it is held to is a call.
TEST_F(ToolsTest, AChoiceOfToolsIsKept) {
  Say("Hello there.");
  const Json required = Choice({{"tool_choice", "required"}, {"max_tokens", 2000}});
  ASSERT_TRUE(required["message"].contains("tool_calls")) << required;
  EXPECT_TRUE(required["message"]["content"].is_null());
  const Json named =
      Choice({{"tool_choice", {{"type", "function"}, {"function", {{"name", "now"}}}}},
              {"max_tokens", 2000}});
  ASSERT_EQ(named["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(named["message"]["tool_calls"][0]["function"]["name"], "now");
  EXPECT_EQ(named["finish_reason"], "tool_calls");
  const Json none = Choice({{"tool_choice", "none"}, {"max_tokens", 2000}});
  EXPECT_EQ(none["message"]["content"], "Hello there.");
}

// A call that does not suit the tools cannot be said.
TEST_F(ToolsTest, CallsAreValidWhateverTheModelWouldSay) {
  Say(Call("subtract", R"({"a": "one"})"));
  const Json choice = Choice({{"max_tokens", 2000}});
  for (const Json& call : choice["message"].value("tool_calls", Json::array())) {
    const std::string name = call["function"]["name"];
    EXPECT_TRUE(name == "add" || name == "now") << choice;
  }
  EXPECT_TRUE(choice["message"]["content"].is_null()) << choice;
}

TEST_F(ToolsTest, OneCallIsTheLastWhereThereMayBeOne) {
  Say(Call("now", "{}") + Call("now", "{}"));
  EXPECT_EQ(Choice({{"max_tokens", 500}})["message"]["tool_calls"].size(), 2u);
  EXPECT_EQ(
      Choice({{"max_tokens", 500}, {"parallel_tool_calls", false}})["message"]["tool_calls"].size(),
      1u);
}

TEST_F(ToolsTest, ACallThatIsCutHasWhatThereIs) {
  const std::string call = Call("add", R"({"a": 1, "b": 2})");
  Say(call);
  const Json choice = Choice({{"max_tokens", call.find("\"b\"") + 2}});
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], R"({"a": 1, "b)");
}

TEST_F(ToolsTest, RefusesWhatIsNoTool) {
  Say("x");
  const auto tools = [](const char* text) { return Json{{"tools", Json::parse(text)}}; };
  ExpectRefused(tools("[1]"), "tools[0]");
  ExpectRefused(tools(R"([{"type": "web_search"}])"), "tools[0].type");
  ExpectRefused(tools(R"([{"type": "function"}])"), "tools[0].function");
  ExpectRefused(tools(R"([{"type": "function", "function": {"name": "a b"}}])"),
                "tools[0].function.name");
  ExpectRefused(tools(R"([{"type": "function", "function": {"name": "a"}},
                          {"type": "function", "function": {"name": "a"}}])"),
                "tools[1].function.name");
  ExpectRefused(tools(R"([{"type": "function", "function": {"name": "a", "parameters": 1}}])"),
                "tools[0].function.parameters");
  ExpectRefused(
      tools(R"([{"type": "function", "function": {"name": "a", "parameters": {"type": 1}}}])"),
      "tools");
  ExpectRefused({{"tool_choice", {{"type", "function"}, {"function", {{"name", "x"}}}}}},
                "tool_choice");
  ExpectRefused({{"ignore_eos", true}}, "ignore_eos");
  ExpectRefused({{"regex", "a"}}, "regex");
}

// As a keyword that cannot be enforced is in response_format: named, or refused where the tool is
// strict.
TEST_F(ToolsTest, TellsWhatItDoesNotEnforce) {
  Say("x");
  Json tools = Json::parse(R"([{"type": "function", "function": {"name": "a", "parameters":
      {"type": "object", "minProperties": 3}}}])");
  const Answer lax = Ask({{"tools", tools}, {"max_tokens", 4}});
  EXPECT_EQ(lax.status, 200) << lax.body;
  EXPECT_EQ(lax.Header("X-Loopspec-Ignored-Keywords"), "minProperties");
  tools[0]["function"]["strict"] = true;
  ExpectRefused({{"tools", tools}}, "tools");
}

TEST_F(ToolsTest, HistoriesOfCallsAreRead) {
  Say("Three.");
  const Json messages = Json::parse(R"([
      {"role": "user", "content": "1 + 2?"},
      {"role": "assistant", "content": null, "reasoning": "hm", "tool_calls": [
          {"id": "c1", "type": "function", "function": {"name": "add",
           "arguments": "{\"a\": 1, \"b\": 2}"}}]},
      {"role": "tool", "tool_call_id": "c1", "content": "3"}])");
  EXPECT_EQ(Choice({{"messages", messages}, {"max_tokens", 50}})["message"]["content"], "Three.");
  const auto count = [&](const Json& body) {
    return Post(server_->port(), "/tokenize", body).json()["count"].get<int>();
  };
  // The tools are part of the prompt, and are counted.
  EXPECT_GT(count({{"messages", messages}, {"tools", kTools}}), count({{"messages", messages}}));
  const Answer counted = Ask({{"messages", messages}, {"max_tokens", 1}});
  EXPECT_EQ(counted.json()["usage"]["prompt_tokens"],
            count({{"messages", messages}, {"tools", kTools}}));
}

TEST_F(ToolsTest, AnswersAreJsonOrCalls) {
  const Json format = Json::parse(
      R"({"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": "ok"}}})");
  Say("Hello");
  const Json said = Choice({{"response_format", format}, {"max_tokens", 50}})["message"]["content"];
  EXPECT_EQ(Json::parse(said.get<std::string>()), "ok") << said;  // perhaps after white space
  Say(Call("now", "{}"));
  EXPECT_EQ(Choice({{"response_format", format}, {"max_tokens", 90}})["finish_reason"],
            "tool_calls");
}

}  // namespace
}  // namespace loopspec::test

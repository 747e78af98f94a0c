// Bodies of /v1/messages as requests in the words of OpenAI's chat.
#include <gtest/gtest.h>

#include "serve/messages/parse.h"
#include "serve/openai/error.h"

namespace loopspec::test {
namespace {

using namespace serve;

const WireParser& Wire() {
  static const WireParser parser{WireLimits()};
  return parser;
}

CompletionRequest ReadMessages(const std::string& fields, Endpoint endpoint = kMessages) {
  static const MessagesParser parser{Wire()};
  const std::string most = endpoint == kMessages ? R"("max_tokens":5,)" : "";
  return parser.Read(endpoint, "{" + most + fields + "}");
}

std::string Conversation(const std::string& messages) {
  return ReadMessages(R"("messages":)" + messages).messages.dump();
}

std::string MessagesRefusal(const std::string& fields, Endpoint endpoint = kMessages) {
  try {
    ReadMessages(fields, endpoint);
  } catch (const ApiException& error) {
    return error.error().param + ": " + error.error().message;
  }
  return "accepted";
}

constexpr const char* kHi = R"("messages":[{"role":"user","content":"hi"}])";
std::string Hi(const std::string& more) {
  return kHi + ("," + more);
}

TEST(MessagesParse, TakesTextAndBlocksOfText) {
  EXPECT_EQ(Conversation(R"([{"role":"user","content":"hi"},
                            {"role":"assistant","content":[{"type":"text","text":"a"},
                                                           {"type":"text","text":"b"}]},
                            {"role":"user","content":[{"type":"text","text":"x"},
                             {"type":"text","text":"y","cache_control":{"type":"ephemeral"}}]}])"),
            R"([{"role":"user","content":"hi"},{"role":"assistant","content":"ab"},)"
            R"({"role":"user","content":"x\n\ny"}])");
}

TEST(MessagesParse, SystemIsOneMessageWithoutTheLineThatChanges) {
  const auto with = [](const std::string& system) {
    return ReadMessages(Hi(R"("system":)" + system)).messages.dump();
  };
  EXPECT_EQ(with(R"("be brief")"),
            R"([{"role":"system","content":"be brief"},{"role":"user","content":"hi"}])");
  const std::string expected =
      R"([{"role":"system","content":"a\n\nb"},{"role":"user","content":"hi"}])";
  for (const char* billing : {"1", "2"}) {
    EXPECT_EQ(
        with(R"([{"type":"text","text":"x-anthropic-billing-header: cc=)" + std::string(billing) +
             R"("},{"type":"text","text":"a"},{"type":"text","text":"b"}])"),
        expected);
  }
  EXPECT_EQ(with("[]"), R"([{"role":"user","content":"hi"}])");
}

TEST(MessagesParse, CallsAndResultsAreToolCallsAndToolMessages) {
  EXPECT_EQ(Conversation(R"([{"role":"user","content":"add"},
      {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},
        {"type":"redacted_thinking","data":"zzz"},{"type":"text","text":"yes"},
        {"type":"tool_use","id":"t1","name":"add","input":{"b":1,"a":2}},
        {"type":"tool_use","id":"t2","name":"now","input":{}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"3"},
        {"type":"tool_result","tool_use_id":"t2","is_error":true,
         "content":[{"type":"text","text":"no"},{"type":"text","text":"clock"}]},
        {"type":"tool_result","tool_use_id":"t3"},
        {"type":"text","text":"go on"}]}])"),
            R"([{"role":"user","content":"add"},)"
            R"({"role":"assistant","content":"yes","reasoning_content":"hm","tool_calls":[)"
            R"({"id":"t1","type":"function","function":{"name":"add","arguments":{"b":1,"a":2}}},)"
            R"({"id":"t2","type":"function","function":{"name":"now","arguments":{}}}]},)"
            R"({"role":"tool","tool_call_id":"t1","content":"3"},)"
            R"({"role":"tool","tool_call_id":"t2","content":"Error: no\n\nclock"},)"
            R"({"role":"tool","tool_call_id":"t3","content":""},)"
            R"({"role":"user","content":"go on"}])");
}

TEST(MessagesParse, ToolsAndTheirChoice) {
  const std::string add = R"({"name":"add","description":"Adds.","input_schema":
      {"type":"object","properties":{"b":{"type":"integer"},"a":{"type":"integer"}}}})";
  const auto tools = [&](const std::string& choice) {
    return ReadMessages(Hi(R"("tools":[)" + add + R"(,{"type":"web_search_20250305",
        "name":"web_search"}],"tool_choice":)" +
                           choice));
  };
  const CompletionRequest automatic = tools(R"({"type":"auto"})");
  EXPECT_EQ(automatic.tools.tools.dump(),
            R"([{"type":"function","function":{"name":"add","description":"Adds.","parameters":)"
            R"({"type":"object","properties":{"b":{"type":"integer"},"a":{"type":"integer"}}}}}])");
  EXPECT_EQ(automatic.ignored.names(), std::vector<std::string>{"tools[].web_search_20250305"});
  EXPECT_TRUE(automatic.tools.choice == ToolChoice::kAuto && automatic.tools.parallel);
  const ToolUse any = tools(R"({"type":"any","disable_parallel_tool_use":true})").tools;
  EXPECT_TRUE(any.choice == ToolChoice::kRequired && !any.parallel);
  EXPECT_EQ(tools(R"({"type":"none"})").tools.choice, ToolChoice::kNone);
  const ToolUse named = tools(R"({"type":"tool","name":"add"})").tools;
  EXPECT_TRUE(named.choice == ToolChoice::kNamed && named.named == "add");
  EXPECT_EQ(
      MessagesRefusal(Hi(R"("tools":[)" + add + R"(],"tool_choice":{"type":"tool","name":"sub"})")),
      "tool_choice.name: tool_choice.name names the tool \"sub\", which is not among tools.");
  // Nothing is chosen where nothing is left to choose.
  EXPECT_EQ(ReadMessages(Hi(R"("tools":[{"type":"bash_20250124","name":"bash"}],
                              "tool_choice":{"type":"any"})"))
                .tools.choice,
            ToolChoice::kAuto);
}

TEST(MessagesParse, ImagesAreRefusedOnlyWhereTheyAreAskedAbout) {
  const std::string image = R"({"type":"image","source":{"type":"base64","data":"AAAA"}})";
  EXPECT_EQ(
      MessagesRefusal(R"("messages":[{"role":"user","content":[{"type":"text","text":"see"},)" +
                      image + "]}]"),
      "messages[0].content[1]: messages[0].content[1] has type image; this model reads text "
      "only.");
  EXPECT_EQ(Conversation(R"([{"role":"user","content":[)" + image + R"(]},
                            {"role":"user","content":[{"type":"tool_result","tool_use_id":"t",
                             "content":[)" +
                         image + "]}]}]"),
            R"([{"role":"user","content":"[image left out: this model reads text only]"},)"
            R"({"role":"tool","tool_call_id":"t",)"
            R"("content":"[image left out: this model reads text only]"}])");
}

TEST(MessagesParse, UnknownBlocksAreLeftOutAndNamed) {
  const CompletionRequest request = ReadMessages(
      R"("messages":[{"role":"user","content":"a"},
         {"role":"assistant","content":[{"type":"server_tool_use","id":"1","name":"w","input":{}},
          {"type":"text","text":"b"}]},
         {"role":"user","content":[{"type":"container_upload","file_id":"1"},
          {"type":"text","text":"c"}]}],"novel":1)");
  EXPECT_EQ(request.messages.dump(),
            R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},)"
            R"({"role":"user","content":"c"}])");
  EXPECT_EQ(request.ignored.names(),
            (std::vector<std::string>{"novel", "messages[].content[].server_tool_use",
                                      "messages[].content[].container_upload"}));
  WireLimits strict;
  strict.strict = true;
  const WireParser wire(strict);
  EXPECT_THROW(MessagesParser(wire).Read(kMessages, R"({"max_tokens":1,"novel":1,"messages":
      [{"role":"user","content":"a"}]})"),
               ApiException);
}

TEST(MessagesParse, OtherFields) {
  const CompletionRequest request =
      ReadMessages(Hi(R"("model":"claude-x","stream":true,"temperature":0.5,"top_p":0.9,"top_k":3,
            "stop_sequences":["END"],"metadata":{"user_id":"u"},"thinking":{"type":"enabled",
            "budget_tokens":1024},"seed":7,"decode":"ar")"));
  EXPECT_TRUE(request.stream && request.clamp_max_tokens);
  EXPECT_EQ(request.endpoint, kChat);
  EXPECT_EQ(request.asked.max_tokens, 5);
  EXPECT_EQ(request.asked.stop, std::vector<std::string>{"END"});
  EXPECT_EQ(request.asked.seed, 7u);
  EXPECT_EQ(request.asked.decoding, Decoding::kAutoregressive);
  EXPECT_EQ(request.sampling.said().temperature, 0.5f);
  EXPECT_EQ(request.sampling.said().top_k, 3);
  EXPECT_EQ(request.template_arguments.dump(), R"({"enable_thinking":true})");
  EXPECT_EQ(request.asked.max_thinking_tokens, 1024);
  EXPECT_EQ(request.reasoning, ReasoningFormat::kReasoningContent);
  EXPECT_TRUE(request.ignored.names().empty());
  const auto thinks = [](const char* type) {
    return ReadMessages(Hi(R"("thinking":{"type":")" + std::string(type) + "\"}"))
        .template_arguments["enable_thinking"]
        .get<bool>();
  };
  EXPECT_TRUE(thinks("adaptive"));
  EXPECT_FALSE(thinks("disabled"));
  EXPECT_TRUE(ReadMessages(kHi).template_arguments.empty());
  const CompletionRequest formatted = ReadMessages(
      Hi(R"("output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}})"));
  EXPECT_EQ(formatted.asked.grammar.text, R"({"type":"object"})");
  EXPECT_EQ(formatted.grammar_field, "output_config.format");
}

TEST(MessagesParse, RefusalsNameTheField) {
  const MessagesParser parser{Wire()};
  EXPECT_THROW(parser.Read(kMessages, "[]"), ApiException);
  try {
    parser.Read(kMessages, std::string("{") + kHi + "}");
    ADD_FAILURE();
  } catch (const ApiException& error) {
    EXPECT_EQ(error.error().message, "max_tokens is missing.");
  }
  EXPECT_EQ(MessagesRefusal(kHi, kCountTokens), "accepted");
  EXPECT_EQ(MessagesRefusal(R"("system":"a")"), "messages: messages is missing.");
  EXPECT_EQ(MessagesRefusal(R"("messages":[])"), "messages: messages is an empty list.");
  EXPECT_EQ(MessagesRefusal(R"("messages":[{"role":"user"}])"),
            "messages[0].content: messages[0] has no content.");
  EXPECT_TRUE(MessagesRefusal(R"("messages":[{"role":"robot","content":""}])")
                  .starts_with("messages[0].role: "));
  EXPECT_TRUE(MessagesRefusal(R"("messages":[{"role":"user","content":[{"text":"a"}]}])")
                  .starts_with("messages[0].content[0].type: "));
  EXPECT_TRUE(MessagesRefusal(R"("messages":[{"role":"assistant","content":[{"type":"tool_use",
                                 "id":"1","name":"n","input":3}]}])")
                  .starts_with("messages[0].content[0].input: "));
  EXPECT_TRUE(
      MessagesRefusal(Hi(R"("tools":[{"name":"a"}])")).starts_with("tools[0].input_schema: "));
  EXPECT_TRUE(
      MessagesRefusal(Hi(R"("thinking":{"type":"perhaps"})")).starts_with("thinking.type: "));
  EXPECT_TRUE(MessagesRefusal(Hi(R"("temperature":"hot")")).starts_with("temperature: "));
}

}  // namespace
}  // namespace loopspec::test

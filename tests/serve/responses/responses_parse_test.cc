// Bodies of /v1/responses as requests in the words of OpenAI's chat.
#include <gtest/gtest.h>

#include "serve/openai/error.h"
#include "serve/responses/parse.h"

namespace loopspec::test {
namespace {

using namespace serve;

ResponsesRequest ReadResponse(const std::string& fields) {
  static const WireParser wire{WireLimits()};
  static const ResponsesParser parser{wire};
  return parser.Read("{" + fields + "}");
}

std::string ItemsAsChat(const std::string& items) {
  return ReadResponse(R"("input":)" + items).chat.messages.dump();
}

std::string ResponseRefusal(const std::string& fields) {
  try {
    ReadResponse(fields);
  } catch (const ApiException& error) {
    return error.error().param + ": " + error.error().message;
  }
  return "accepted";
}

std::string WithInput(const std::string& more) {
  return R"("input":"hi",)" + more;
}

TEST(ResponsesParse, TakesTextAndMessages) {
  EXPECT_EQ(ItemsAsChat(R"("hi")"), R"([{"role":"user","content":"hi"}])");
  EXPECT_EQ(ReadResponse(WithInput(R"("instructions":"be brief")")).chat.messages.dump(),
            R"([{"role":"system","content":"be brief"},{"role":"user","content":"hi"}])");
  EXPECT_EQ(ReadResponse(R"("input":[{"type":"message","role":"developer","content":"b"},
          {"role":"user","content":[{"type":"input_text","text":"x"},{"type":"input_text","text":"y"}]},
          {"type":"message","role":"assistant","id":"msg_1","status":"completed",
           "content":[{"type":"output_text","text":"z","annotations":[],"logprobs":[]}]},
          {"role":"developer","content":"c"},
          {"role":"user","content":"w"}],"instructions":"a")")
                .chat.messages.dump(),
            R"([{"role":"system","content":"a\n\nb"},{"role":"user","content":"xy"},)"
            R"({"role":"assistant","content":"z"},{"role":"system","content":"c"},)"
            R"({"role":"user","content":"w"}])");
}

TEST(ResponsesParse, CallsAndOutputsAreOneTurnAndToolMessages) {
  EXPECT_EQ(ItemsAsChat(R"([{"role":"user","content":"add"},
      {"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"short"}],
       "content":[{"type":"reasoning_text","text":"hm"}],"encrypted_content":"zzz"},
      {"type":"message","role":"assistant","content":[{"type":"output_text","text":"yes"}]},
      {"type":"function_call","call_id":"c1","name":"add","arguments":"{\"b\":1}","id":"fc_1"},
      {"type":"function_call","call_id":"c2","name":"now","arguments":"{}"},
      {"type":"function_call_output","call_id":"c1","output":"3"},
      {"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"no"},
       {"type":"input_image","image_url":"data:"}]},
      {"type":"reasoning","summary":[{"type":"summary_text","text":"so"}]},
      {"type":"function_call","call_id":"c3","name":"now","arguments":"{\"x"}])"),
            R"([{"role":"user","content":"add"},)"
            R"({"role":"assistant","content":"yes","reasoning_content":"hm","tool_calls":[)"
            R"({"id":"c1","type":"function","function":{"name":"add","arguments":{"b":1}}},)"
            R"({"id":"c2","type":"function","function":{"name":"now","arguments":{}}}]},)"
            R"({"role":"tool","tool_call_id":"c1","content":"3"},)"
            R"({"role":"tool","tool_call_id":"c2",)"
            R"("content":"no[image left out: this model reads text only]"},)"
            R"({"role":"assistant","content":"","reasoning_content":"so","tool_calls":[)"
            R"({"id":"c3","type":"function","function":{"name":"now","arguments":"{\"x"}}]}])");
}

TEST(ResponsesParse, ToolsAndTheirChoice) {
  const std::string add = R"({"type":"function","name":"add","description":"Adds.",
      "parameters":{"type":"object"},"strict":true})";
  const auto tools = [&](const std::string& choice) {
    return ReadResponse(WithInput(R"("tools":[)" + add +
                                  R"(,{"type":"web_search"},{"type":"local_shell"}],
        "parallel_tool_calls":false,"tool_choice":)" +
                                  choice));
  };
  const ResponsesRequest automatic = tools(R"("auto")");
  EXPECT_EQ(automatic.chat.tools.tools.dump(),
            R"([{"type":"function","function":{"name":"add","description":"Adds.",)"
            R"("parameters":{"type":"object"},"strict":true}}])");
  EXPECT_EQ(automatic.echo["tools"].size(), 3u);
  EXPECT_EQ(automatic.echo["parallel_tool_calls"], false);
  EXPECT_FALSE(automatic.chat.tools.parallel);
  EXPECT_EQ(automatic.chat.ignored.names(),
            (std::vector<std::string>{"tools[].web_search", "tools[].local_shell"}));
  EXPECT_EQ(tools(R"("none")").chat.tools.choice, ToolChoice::kNone);
  EXPECT_EQ(tools(R"("required")").chat.tools.choice, ToolChoice::kRequired);
  const ToolUse allowed = tools(R"({"type":"allowed_tools","mode":"required","tools":[
      {"type":"function","name":"add"},{"type":"web_search"}]})")
                              .chat.tools;
  EXPECT_EQ(allowed.choice, ToolChoice::kRequired);
  EXPECT_EQ(allowed.allowed, std::vector<std::string>{"add"});
  EXPECT_EQ(tools(R"({"type":"web_search"})").chat.tools.choice, ToolChoice::kAuto);
  const ToolUse named = tools(R"({"type":"function","name":"add"})").chat.tools;
  EXPECT_TRUE(named.choice == ToolChoice::kNamed && named.named == "add");
  EXPECT_TRUE(ResponseRefusal(WithInput(R"("tools":[)" + add +
                                        R"(],"tool_choice":{"type":"function","name":"b"})"))
                  .starts_with("tool_choice.name: "));
}

TEST(ResponsesParse, WhatNeedsAKeptResponseIsRefused) {
  EXPECT_EQ(ResponseRefusal(WithInput(R"("previous_response_id":"resp_1")")),
            "previous_response_id: previous_response_id is \"resp_1\", expected none: this server "
            "keeps no responses, so send the whole conversation as input.");
  EXPECT_TRUE(
      ResponseRefusal(WithInput(R"("conversation":{"id":"1"})")).starts_with("conversation: "));
  EXPECT_TRUE(ResponseRefusal(WithInput(R"("background":true)")).starts_with("background: "));
  EXPECT_TRUE(
      ResponseRefusal(R"("input":[{"type":"item_reference","id":"1"}])").starts_with("input[0]: "));
  EXPECT_EQ(ResponseRefusal(WithInput(R"("previous_response_id":null,"conversation":null,
                                         "background":false,"store":true)")),
            "accepted");
}

TEST(ResponsesParse, ImagesAndUnknownItems) {
  const std::string image = R"({"role":"user","content":[{"type":"input_image","image_url":"x"}]})";
  EXPECT_EQ(ResponseRefusal(R"("input":[)" + image + "]"),
            "input[0].content[0]: input[0].content[0] has type input_image; this model reads text "
            "only.");
  const ResponsesRequest request = ReadResponse(
      R"("input":[)" + image + R"(,{"type":"web_search_call","id":"w","status":"completed"},
          {"role":"user","content":"go on"}],"novel":1)");
  EXPECT_EQ(request.chat.messages.dump(),
            R"([{"role":"user","content":"[image left out: this model reads text only]"},)"
            R"({"role":"user","content":"go on"}])");
  EXPECT_EQ(request.chat.ignored.names(),
            (std::vector<std::string>{"novel", "input[].web_search_call"}));
}

// By the place that it has in the body, also behind tools that are left out.
TEST(ResponsesParse, NamesOfTools) {
  EXPECT_TRUE(ResponseRefusal(WithInput(R"("tools":[{"type":"web_search"},
                                            {"type":"function","name":"two words"}])"))
                  .starts_with("tools[1].name: tools[1].name is \"two words\", expected"));
}

TEST(ResponsesParse, OtherFields) {
  const ResponsesRequest request = ReadResponse(WithInput(
      R"("model":"gpt-x","max_output_tokens":32000,"temperature":0.5,"top_p":0.9,"stream":true,
         "include":["reasoning.encrypted_content"],"metadata":{"a":"b"},"truncation":"auto",
         "user":"u","seed":3,"decode":"ar","service_tier":"auto","prompt_cache_key":"k",
         "reasoning":{"effort":"none","summary":"auto"},"text":{"format":{"type":"json_schema",
         "name":"n","schema":{"type":"object","properties":{"b":{},"a":{}}},"strict":true}})"));
  const CompletionRequest& chat = request.chat;
  EXPECT_EQ(chat.asked.max_tokens, 32000);
  EXPECT_TRUE(chat.clamp_max_tokens && chat.stream && request.summary);
  EXPECT_EQ(chat.asked.seed, 3u);
  EXPECT_EQ(chat.sampling.said().temperature, 0.5f);
  EXPECT_EQ(chat.asked.grammar.text, R"({"type":"object","properties":{"b":{},"a":{}}})");
  EXPECT_TRUE(chat.asked.grammar.strict);
  EXPECT_EQ(chat.reasoning_effort, "none");
  EXPECT_TRUE(chat.template_arguments.empty());
  EXPECT_TRUE(chat.ignored.names().empty());
  const OrderedJson& echo = request.echo;
  EXPECT_EQ(echo["metadata"].dump(), R"({"a":"b"})");
  EXPECT_EQ(echo["user"], "u");
  EXPECT_EQ(echo["temperature"], 0.5);
  EXPECT_EQ(echo["reasoning"].dump(), R"({"effort":"none","summary":"auto"})");
  EXPECT_EQ(echo["text"]["format"]["name"], "n");
  EXPECT_EQ(echo["store"], false);
  EXPECT_EQ(
      ReadResponse(WithInput(R"("text":{"format":{"type":"json_object"}})")).chat.grammar_field,
      "text.format");
  EXPECT_EQ(ReadResponse(WithInput(R"("text":{"format":{"type":"text"}})")).chat.grammar_field, "");
}

TEST(ResponsesParse, RefusalsNameTheField) {
  EXPECT_EQ(ResponseRefusal(R"("model":"m")"), "input: input is missing.");
  EXPECT_EQ(ResponseRefusal(R"("input":[])"), "input: input has nothing that could be read.");
  EXPECT_TRUE(ResponseRefusal(R"("input":3)").starts_with("input: "));
  EXPECT_TRUE(ResponseRefusal(R"("input":[{"role":"robot","content":"a"}])")
                  .starts_with("input[0].role: "));
  EXPECT_TRUE(ResponseRefusal(R"("input":[{}])").starts_with("input[0].type: "));
  EXPECT_TRUE(
      ResponseRefusal(WithInput(R"("max_output_tokens":0)")).starts_with("max_output_tokens: "));
  EXPECT_TRUE(ResponseRefusal(WithInput(R"("text":{"format":{"type":"xml"}})"))
                  .starts_with("text.format.type: "));
}

}  // namespace
}  // namespace loopspec::test

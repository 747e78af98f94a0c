// Answers in the form of /v1/messages: events in their order, and the same whole.
#include <gtest/gtest.h>

#include "serve/messages/answer.h"
#include "tests/serve/part_support.h"

namespace loopspec::test {
namespace {

using namespace serve;

CallContext MessagesContext() {
  CallContext context;
  context.model = "m";
  context.id = "7";
  return context;
}

MessagesAnswer MakeMessage(bool in_reasoning = false) {
  return {MessagesContext(), BlockSetup(in_reasoning)};
}

TEST(MessagesAnswer, WholeHasItsBlocks) {
  MessagesAnswer answer = MakeMessage();
  Say(answer, "<think>hm</think>let me @add{\"b\":1,\"a\":2}@@now{}@",
      EndedBy(FinishReason::kStop));
  ASSERT_TRUE(answer.complete());
  const OrderedJson body = OrderedJson::parse(answer.Body(0));
  EXPECT_EQ(body["content"].dump(),
            R"([{"type":"thinking","thinking":"hm","signature":"loopspec"},)"
            R"({"type":"text","text":"let me "},)"
            R"({"type":"tool_use","id":"toolu_7_2","name":"add","input":{"b":1,"a":2}},)"
            R"({"type":"tool_use","id":"toolu_7_3","name":"now","input":{}}])");
  EXPECT_EQ(body["id"], "msg_7");
  EXPECT_EQ(body["type"], "message");
  EXPECT_EQ(body["role"], "assistant");
  EXPECT_EQ(body["model"], "m");
  EXPECT_EQ(body["stop_reason"], "tool_use");
  EXPECT_TRUE(body["stop_sequence"].is_null());
  EXPECT_EQ(body["usage"]["input_tokens"], 10);
  EXPECT_EQ(body["usage"]["cache_read_input_tokens"], 90);
  EXPECT_EQ(answer.counts().cached_tokens, 90);
  EXPECT_EQ(answer.counts().outcome, "stop");
}

TEST(MessagesAnswer, EndsAreNamedAsAnthropicDoes) {
  const auto end = [](const std::string& text, Statistics statistics) {
    MessagesAnswer answer = MakeMessage();
    Say(answer, text, std::move(statistics));
    const Json body = Json::parse(answer.Body(0));
    return body["stop_reason"].get<std::string>() + " " + body["stop_sequence"].dump();
  };
  EXPECT_EQ(end("a", EndedBy(FinishReason::kStop)), "end_turn null");
  EXPECT_EQ(end("a", EndedBy(FinishReason::kLength)), "max_tokens null");
  EXPECT_EQ(end("@add{\"a\":", EndedBy(FinishReason::kLength)), "max_tokens null");
  Statistics stopped = EndedBy(FinishReason::kStop);
  stopped.stop_string = "END";
  EXPECT_EQ(end("a", stopped), "stop_sequence \"END\"");
}

TEST(MessagesAnswer, EventsComeInTheirOrder) {
  const std::string said = "<think>hm</think>let me @add{\"b\":1}@";
  for (const size_t bytes : {size_t{1}, size_t{3}, size_t{100}}) {
    MessagesAnswer answer = MakeMessage(), whole = MakeMessage();
    std::string stream;
    Say(answer, said, EndedBy(FinishReason::kStop), bytes, &stream);
    Say(whole, said, EndedBy(FinishReason::kStop), bytes);
    const Json body = Json::parse(whole.Body(0));
    std::string order;
    Json content = Json::array();
    Json message;
    for (const Json& event : NamedEvents(stream)) {
      std::string name = event["type"];
      if (name == "message_start") message = event["message"];
      if (name == "content_block_start") {
        ASSERT_EQ(event["index"], content.size());
        content.push_back(event["content_block"]);
      }
      if (name == "content_block_delta") {
        ASSERT_EQ(event["index"], content.size() - 1);
        const Json& delta = event["delta"];
        name = delta["type"];
        Json& block = content.back();
        if (name == "thinking_delta")
          block["thinking"] =
              block["thinking"].get<std::string>() + delta["thinking"].get<std::string>();
        if (name == "signature_delta") block["signature"] = delta["signature"];
        if (name == "text_delta")
          block["text"] = block["text"].get<std::string>() + delta["text"].get<std::string>();
        if (name == "input_json_delta") {
          if (!block.contains("partial")) block["partial"] = "";
          block["partial"] =
              block["partial"].get<std::string>() + delta["partial_json"].get<std::string>();
        }
      }
      if (name == "content_block_stop" && content.back().contains("partial")) {
        content.back()["input"] = Json::parse(content.back()["partial"].get<std::string>());
        content.back().erase("partial");
      }
      if (name == "message_delta") {
        message.update(event["delta"]);
        message["usage"].update(event["usage"]);
      }
      if (order.empty() || !order.ends_with(name + " ")) order += name + " ";
    }
    EXPECT_EQ(order,
              "message_start ping content_block_start thinking_delta signature_delta "
              "content_block_stop content_block_start text_delta content_block_stop "
              "content_block_start input_json_delta content_block_stop message_delta "
              "message_stop ");
    message["content"] = content;
    EXPECT_EQ(message, body);
  }
}

TEST(MessagesAnswer, SilenceIsAnEmptyText) {
  MessagesAnswer answer = MakeMessage();
  std::string stream;
  Say(answer, "", EndedBy(FinishReason::kStop), 3, &stream);
  EXPECT_EQ(NamedEvents(stream).size(), 6u) << stream;
  EXPECT_EQ(Json::parse(answer.Body(0))["content"].dump(), R"([{"text":"","type":"text"}])");
}

TEST(MessagesAnswer, ErrorsHaveAnthropicsForm) {
  ApiError error;
  error.message = "No.";
  EXPECT_EQ(MakeMessage().ErrorEvents(error),
            "event: error\ndata: "
            R"({"type":"error","error":{"type":"invalid_request_error","message":"No."}})"
            "\n\n");
  error.code = "context_length_exceeded";
  EXPECT_EQ(MessagesErrorJson(error)["error"]["message"], "prompt is too long: No.");
  const std::pair<int, const char*> types[] = {{401, "authentication_error"},
                                               {403, "permission_error"},
                                               {404, "not_found_error"},
                                               {413, "request_too_large"},
                                               {415, "invalid_request_error"},
                                               {429, "rate_limit_error"},
                                               {500, "api_error"},
                                               {503, "overloaded_error"},
                                               {504, "timeout_error"}};
  for (const auto& [status, type] : types) {
    error.status = status;
    EXPECT_EQ(MessagesErrorJson(error)["error"]["type"], type);
  }
}

}  // namespace
}  // namespace loopspec::test

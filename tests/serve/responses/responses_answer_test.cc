// Answers in the form of /v1/responses: events in their order, and the same whole.
#include <gtest/gtest.h>

#include "serve/responses/answer.h"
#include "tests/serve/part_support.h"

namespace loopspec::test {
namespace {

using namespace serve;

ResponsesAnswer MakeResponse(bool summary = false) {
  CallContext context;
  context.model = "m";
  context.id = "7";
  context.created = 5;
  ResponsesAnswer::Form form;
  form.echo = {{"max_output_tokens", nullptr}, {"metadata", {{"a", "b"}}}};
  form.summary = summary;
  form.max_tokens = true;
  return {std::move(form), context, BlockSetup()};
}

constexpr const char* kSaid = "<think>hm</think>let me @add{\"b\":1}@";

TEST(ResponsesAnswer, WholeHasItsItems) {
  ResponsesAnswer answer = MakeResponse();
  Say(answer, kSaid, EndedBy(FinishReason::kStop));
  const OrderedJson body = OrderedJson::parse(answer.Body(0));
  EXPECT_EQ(body["output"].dump(),
            R"([{"id":"rs_7_0","type":"reasoning","summary":[],)"
            R"("content":[{"type":"reasoning_text","text":"hm"}],"status":"completed"},)"
            R"({"id":"msg_7_1","type":"message","role":"assistant","content":[)"
            R"({"type":"output_text","text":"let me ","annotations":[],"logprobs":[]}],)"
            R"("status":"completed"},)"
            R"({"id":"fc_7_2","type":"function_call","call_id":"call_7_2","name":"add",)"
            R"("arguments":"{\"b\":1}","status":"completed"}])");
  EXPECT_EQ(body["id"], "resp_7");
  EXPECT_EQ(body["object"], "response");
  EXPECT_EQ(body["created_at"], 5);
  EXPECT_EQ(body["status"], "completed");
  EXPECT_EQ(body["max_output_tokens"], 50);
  EXPECT_EQ(body["metadata"]["a"], "b");
  const OrderedJson& usage = body["usage"];
  EXPECT_EQ(usage["input_tokens"], 100);
  EXPECT_EQ(usage["input_tokens_details"]["cached_tokens"], 90);
  EXPECT_EQ(usage["output_tokens"], 12);
  EXPECT_EQ(usage["output_tokens_details"]["reasoning_tokens"], 5);
  EXPECT_EQ(usage["total_tokens"], 112);
}

TEST(ResponsesAnswer, ASummaryStandsForTheContentWhereAskedFor) {
  ResponsesAnswer answer = MakeResponse(true);
  std::string stream;
  Say(answer, "<think>hm</think>a", EndedBy(FinishReason::kStop), 100, &stream);
  EXPECT_EQ(OrderedJson::parse(answer.Body(0))["output"][0].dump(),
            R"({"id":"rs_7_0","type":"reasoning",)"
            R"("summary":[{"type":"summary_text","text":"hm"}],"status":"completed"})");
  const auto events = NamedEvents(stream);
  EXPECT_EQ(events[3]["type"], "response.reasoning_summary_part.added");
  EXPECT_EQ(events[4]["type"], "response.reasoning_summary_text.delta");
  EXPECT_EQ(events[4]["summary_index"], 0);
  EXPECT_EQ(events[5]["type"], "response.reasoning_summary_text.done");
  EXPECT_EQ(events[6]["type"], "response.reasoning_summary_part.done");
}

TEST(ResponsesAnswer, WhatIsCutIsIncomplete) {
  ResponsesAnswer answer = MakeResponse();
  std::string stream;
  Say(answer, "a @add{\"b", EndedBy(FinishReason::kLength), 3, &stream);
  const Json body = Json::parse(answer.Body(0));
  EXPECT_EQ(body["status"], "incomplete");
  EXPECT_EQ(body["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(body["output"][0]["status"], "completed");
  EXPECT_EQ(body["output"][1]["status"], "incomplete");
  const Json last = NamedEvents(stream).back();
  EXPECT_EQ(last["type"], "response.incomplete");
  EXPECT_EQ(last["response"], body);
}

// Puts items together as a client does, and compares them with the response at the end.
TEST(ResponsesAnswer, EventsComeInTheirOrder) {
  for (const size_t bytes : {size_t{1}, size_t{3}, size_t{100}}) {
    ResponsesAnswer answer = MakeResponse();
    std::string stream;
    Say(answer, kSaid, EndedBy(FinishReason::kStop), bytes, &stream);
    std::string order, text;
    Json items = Json::array(), last;
    int sequence = 0;
    for (const Json& event : NamedEvents(stream)) {
      std::string name = event["type"];
      name = name.substr(std::string("response.").size());
      EXPECT_EQ(event["sequence_number"], sequence++);
      if (event.contains("response")) {
        last = event["response"];
        const bool over = name == "completed";
        EXPECT_EQ(last["usage"].is_null(), !over);
        EXPECT_EQ(last["status"], over ? "completed" : "in_progress");
        EXPECT_EQ(last["output"].empty(), !over);
      }
      if (event.contains("item_id")) {
        EXPECT_EQ(event["output_index"], items.size() - 1);
        EXPECT_EQ(event["item_id"], items.back()["id"]);
      }
      if (name == "output_item.added") {
        EXPECT_EQ(event["output_index"], items.size());
        EXPECT_EQ(event["item"]["status"], "in_progress");
        items.push_back(event["item"]);
        text.clear();
      }
      if (name.ends_with(".delta")) text += event["delta"].get<std::string>();
      if (name.ends_with("text.done")) {
        EXPECT_EQ(event["text"], text);
        EXPECT_EQ(event["content_index"], 0);
      }
      if (name == "function_call_arguments.done") {
        EXPECT_EQ(event["arguments"], text);
      }
      if (name == "content_part.done") {
        EXPECT_EQ(event["part"]["text"], text);
      }
      if (name == "output_item.done") {
        EXPECT_EQ(event["item"]["id"], items.back()["id"]);
        items.back() = event["item"];
      }
      if (order.empty() || !order.ends_with(name + " ")) order += name + " ";
    }
    EXPECT_EQ(order,
              "created in_progress "
              "output_item.added content_part.added reasoning_text.delta reasoning_text.done "
              "content_part.done output_item.done "
              "output_item.added content_part.added output_text.delta output_text.done "
              "content_part.done output_item.done "
              "output_item.added function_call_arguments.delta function_call_arguments.done "
              "output_item.done completed ");
    EXPECT_EQ(last["output"], items);
    EXPECT_EQ(last, Json::parse(answer.Body(0)));
  }
}

TEST(ResponsesAnswer, FailuresEndTheStream) {
  ResponsesAnswer answer = MakeResponse();
  Token token;
  token.text = "abc";
  answer.AddToken(0, token);
  const size_t before = NamedEvents(answer.Events(0)).size();
  ApiError error;
  error.status = 500;
  error.message = "It broke.";
  const auto events = NamedEvents(answer.ErrorEvents(error));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["type"], "response.failed");
  EXPECT_EQ(events[0]["sequence_number"], before);
  EXPECT_EQ(events[0]["response"]["status"], "failed");
  EXPECT_EQ(events[0]["response"]["error"]["message"], "It broke.");
}

}  // namespace
}  // namespace loopspec::test

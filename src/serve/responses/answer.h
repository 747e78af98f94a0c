// Answers in the form of OpenAI's Responses, whole or as a stream. An answer's blocks are its
// items: reasoning, a message, calls of functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "serve/openai/part_answer.h"
#include "serve/openai/text_call.h"
#include "serve/responses/parse.h"

namespace loopspec::serve {

class ResponsesAnswer final : public PartAnswer {
 public:
  // What the answer repeats of the request, or is shaped by.
  struct Form {
    OrderedJson echo;
    bool summary = false;
    bool max_tokens = false;  // the request sets max_output_tokens
  };
  ResponsesAnswer(Form form, const CallContext& context, AnswerSetup setup);

  std::string Body(double seconds) override;
  std::string ErrorEvents(const ApiError& error) const override;

 private:
  std::string Begin() override;
  std::string Open(size_t block) override;
  std::string Delta(size_t block, std::string_view text) override;
  std::string Close(size_t block) override;
  std::string End() override;

  // The response as of now; `status`: in_progress, completed, incomplete or failed.
  OrderedJson Response(const char* status) const;
  OrderedJson Items() const;
  OrderedJson ItemJson(size_t block, const char* status) const;
  OrderedJson PartJson(size_t block, bool whole) const;
  std::string ItemId(size_t block) const;
  const char* EndStatus() const { return cut() ? "incomplete" : "completed"; }
  // The status of an item: all are completed but the last one of an answer that was cut off.
  const char* ItemStatus(size_t block) const;

  // {"type", "sequence_number", ...}
  std::string Event(const char* type, OrderedJson members);
  // Event() with item_id and output_index; PartEvent() also with the part's index in its item.
  std::string ItemEvent(const char* type, size_t block, OrderedJson members);
  std::string PartEvent(const char* type, size_t block, OrderedJson members);
  bool Summarized(size_t block) const;

  const Form form_;
  const std::string id_;  // of this answer; those of its items are made of it
  const std::string model_;
  const int64_t created_;
  int64_t sequence_ = 0;
};

}  // namespace loopspec::serve

// Answers in the form of Anthropic's Messages, whole or as a stream.
#pragma once

#include <string>
#include <string_view>

#include "serve/openai/part_answer.h"
#include "serve/openai/text_call.h"

namespace loopspec::serve {

class MessagesAnswer final : public PartAnswer {
 public:
  MessagesAnswer(const CallContext& context, AnswerSetup setup);

  std::string Body(double seconds) override;
  std::string ErrorEvents(const ApiError& error) const override;

 private:
  std::string Begin() override;
  std::string Open(size_t block) override;
  std::string Delta(size_t block, std::string_view text) override;
  std::string Close(size_t block) override;
  std::string End() override;

  OrderedJson Head() const;
  OrderedJson BlockJson(size_t block, bool whole) const;
  OrderedJson UsageOfMessage() const;
  std::string StopReasonName() const;
  OrderedJson StopSequence() const;

  const std::string id_;  // of this answer; those of its calls are made of it
  const std::string model_;
};

// {"type": "error", "error": {"type", "message"}}
OrderedJson MessagesErrorJson(const ApiError& error);

}  // namespace loopspec::serve

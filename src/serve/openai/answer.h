// Answers in OpenAI's and SGLang's forms, whole or as a stream. When several events have gathered,
// what is new leaves as one event for each choice.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serve/openai/text.h"
#include "serve/openai/text_call.h"
#include "serve/openai/types.h"
#include "serve/openai/write.h"

namespace loopspec::serve {

class CompletionAnswer final : public AnswerWriter {
 public:
  // How it is written.
  struct Form {
    Form(const CompletionRequest& request, const CallContext& context);

    ResponseHead head;
    WriteOptions write;
    bool batch = false;             // the prompts came as a list
    std::vector<int32_t> own_ends;  // tokens that end a text without being a reason to name
    std::string call_id;            // what the names of calls are made of
  };
  CompletionAnswer(Form form, AnswerSetup setup);

  void AddPrompt(size_t prompt, std::vector<Token> scores) override;
  void AddToken(size_t prompt, Token token) override;
  void AddTrace(size_t prompt, int choice, const std::vector<TraceEvent>& trace) override;
  void AddEnd(size_t prompt, const Token& last, Statistics statistics) override;
  bool complete() const override { return unfinished_ == 0; }

  std::string Body(double seconds) override;
  std::string Events(double seconds) override;
  std::string ErrorEvents(const ApiError& error) const override;
  AnswerCounts counts() const override;

 private:
  using Time = std::chrono::steady_clock::time_point;

  // What is known of one choice; `part` is what has not been written yet.
  struct Choice {
    explicit Choice(const AnswerSplitter::Options& split) : splitter(split) {}
    ChoicePart part;
    AnswerSplitter splitter;
    std::string arguments;  // of the last call, so far
    size_t offset = 0;      // characters in tokens that were written
    int64_t told = 0;       // tokens when the last event left
    int64_t tokens = 0;
    bool touched = false;
  };

  bool generate() const { return form_.head.endpoint == kGenerate; }
  Choice& At(size_t prompt, int choice);
  void AddPart(ChoicePart& part, const AnswerPart& told) const;
  void AddText(Choice& choice, const std::string& text, bool last);
  bool Waits(const Choice& choice) const;
  Usage ChoiceUsage(size_t index) const;
  Usage TotalUsage() const;
  RunSummary Summary() const;

  const Form form_;
  const AnswerSetup setup_;
  std::vector<Choice> choices_;
  int unfinished_;
  size_t sent_ = 0;  // bytes of events
  std::optional<Time> first_token_, last_token_;
};

}  // namespace loopspec::serve

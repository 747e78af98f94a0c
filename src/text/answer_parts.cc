#include "text/answer_parts.h"

#include <utility>

namespace loopspec {
namespace {

constexpr std::string_view kEndOfThinking = "</think>";

}  // namespace

AnswerSplitter::AnswerSplitter(const Options& options)
    : split_reasoning_(options.split_reasoning),
      calls_(options.calls ? options.calls() : nullptr),
      reasoning_(options.in_reasoning,
                 calls_ && !options.in_reasoning && !options.may_open_reasoning
                     ? calls_->mark()
                     : std::string_view()),
      thinking_(options.in_reasoning && !options.split_reasoning && calls_) {}

std::vector<AnswerPart> AnswerSplitter::Push(std::string_view text) {
  std::vector<AnswerPart> out;
  if (split_reasoning_) {
    Add(reasoning_.Push(text), out);
  } else {
    AddContent(text, out);
  }
  return out;
}

std::vector<AnswerPart> AnswerSplitter::Finish() {
  std::vector<AnswerPart> out;
  if (split_reasoning_) Add(reasoning_.Finish(), out);
  if (thinking_) AddThinking("", true, out);
  if (calls_) calls_->Finish(out);
  return out;
}

void AnswerSplitter::Add(const ReasoningSplitter::Parts& parts, std::vector<AnswerPart>& out) {
  if (!parts.reasoning.empty()) out.push_back({AnswerPart::Kind::kReasoning, parts.reasoning});
  AddContent(parts.content, out);
}

void AnswerSplitter::AddContent(std::string_view text, std::vector<AnswerPart>& out) {
  if (text.empty()) return;
  if (thinking_) {
    AddThinking(text, false, out);
  } else if (calls_) {
    calls_->Push(text, out);
  } else {
    out.push_back({AnswerPart::Kind::kText, std::string(text)});
  }
}

void AnswerSplitter::AddThinking(std::string_view text, bool last, std::vector<AnswerPart>& out) {
  thought_ += text;
  const size_t close = thought_.find(kEndOfThinking);
  size_t end = close + kEndOfThinking.size();
  if (close == thought_.npos)
    end = thought_.size() - (last ? 0 : BegunTag(thought_, kEndOfThinking));
  if (end > 0) out.push_back({AnswerPart::Kind::kText, thought_.substr(0, end)});
  thought_.erase(0, end);
  if (close == thought_.npos && !last) return;
  thinking_ = false;
  AddContent(std::exchange(thought_, {}), out);
}

}  // namespace loopspec

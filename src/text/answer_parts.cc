#include "text/answer_parts.h"

#include <utility>

namespace loopspec {

AnswerSplitter::AnswerSplitter(const Options& options)
    : split_reasoning_(options.split_reasoning),
      reasoning_(options.in_reasoning),
      calls_(options.calls ? options.calls() : nullptr) {}

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
  if (calls_) calls_->Finish(out);
  return out;
}

void AnswerSplitter::Add(const ReasoningSplitter::Parts& parts, std::vector<AnswerPart>& out) {
  if (!parts.reasoning.empty()) out.push_back({AnswerPart::Kind::kReasoning, parts.reasoning});
  AddContent(parts.content, out);
}

void AnswerSplitter::AddContent(std::string_view text, std::vector<AnswerPart>& out) {
  if (text.empty()) return;
  if (calls_) {
    calls_->Push(text, out);
  } else {
    out.push_back({AnswerPart::Kind::kText, std::string(text)});
  }
}

}  // namespace loopspec

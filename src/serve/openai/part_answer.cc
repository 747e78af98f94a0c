#include "serve/openai/part_answer.h"

#include <algorithm>
#include <utility>

#include "base/json.h"

namespace loopspec::serve {

PartAnswer::PartAnswer(AnswerSetup setup) : setup_(std::move(setup)), splitter_(setup_.split) {}

// ---- Events in ----

void PartAnswer::AddToken(size_t, Token token) {
  ++tokens_;
  Add(splitter_.Push(token.text));
  const bool thinks = blocks_.empty() ? setup_.split.in_reasoning
                                      : blocks_.back().kind == AnswerPart::Kind::kReasoning;
  if (thinks) reasoning_tokens_ = tokens_;
}

void PartAnswer::AddEnd(size_t, const Token& last, Statistics statistics) {
  Add(splitter_.Push(last.text));
  Add(splitter_.Finish());
  // Who says nothing says an empty text: clients expect something.
  if (blocks_.empty()) blocks_.emplace_back();
  end_ = std::move(statistics);
}

void PartAnswer::Add(const std::vector<AnswerPart>& parts) {
  using Kind = AnswerPart::Kind;
  for (const AnswerPart& part : parts) {
    if (part.kind == Kind::kCall) {
      blocks_.push_back({Kind::kCall, part.text, ""});
    } else if (part.kind == Kind::kArguments) {
      blocks_.back().text += part.text;
    } else if (!part.text.empty()) {
      if (blocks_.empty() || blocks_.back().kind != part.kind)
        blocks_.push_back({part.kind, "", ""});
      blocks_.back().text += part.text;
    }
  }
}

// ---- Events out ----

std::string PartAnswer::Events(double) {
  std::string out;
  if (blocks_.empty()) return out;
  if (!std::exchange(begun_, true)) out += Begin();
  while (open_ < blocks_.size()) {
    const AnswerBlock& block = blocks_[open_];
    if (!std::exchange(opened_, true)) out += Open(open_);
    if (told_ < block.text.size()) {
      out += Delta(open_, std::string_view(block.text).substr(told_));
      told_ = block.text.size();
    }
    if (open_ + 1 == blocks_.size() && !end_) return out;
    out += Close(open_);
    ++open_;
    opened_ = false;
    told_ = 0;
  }
  return out + End();
}

// ---- Counts ----

bool PartAnswer::calls() const {
  return std::any_of(blocks_.begin(), blocks_.end(), [](const AnswerBlock& block) {
    return block.kind == AnswerPart::Kind::kCall;
  });
}

bool PartAnswer::cut() const {
  return end_ && end_->finish_reason == FinishReason::kLength;
}

bool PartAnswer::call_cut() const {
  return end_ && blocks_.back().kind == AnswerPart::Kind::kCall &&
         !Json::accept(blocks_.back().text);
}

Usage PartAnswer::usage() const {
  Usage usage;
  usage.prompt_tokens = setup_.prompts.at(0).tokens;
  usage.completion_tokens = end_ ? end_->decoded_tokens : tokens_;
  if (end_) usage.cached_tokens = end_->cached_tokens;
  return usage;
}

AnswerCounts PartAnswer::counts() const {
  const Usage so_far = usage();
  AnswerCounts counts;
  counts.completion_tokens = so_far.completion_tokens;
  counts.cached_tokens = so_far.cached_tokens;
  if (end_) {
    counts.gamma = end_->gamma;
    counts.outcome = NameOf(end_->finish_reason);
  }
  return counts;
}

std::string NamedEvent(const OrderedJson& event) {
  return "event: " + event.at("type").get<std::string>() + "\n" + ServerSentEvent(event);
}

}  // namespace loopspec::serve

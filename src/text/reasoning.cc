#include "text/reasoning.h"

#include <algorithm>

#include "base/trimmed.h"

namespace loopspec {
namespace {

constexpr std::string_view kOpenThink = "<think>";
constexpr std::string_view kCloseThink = "</think>";

std::string_view WithoutWhiteEnd(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kWhite) + 1);
}

}  // namespace

ReasoningSplitter::Parts ReasoningSplitter::Push(std::string_view text) {
  held_ += text;
  Parts parts;
  Advance(false, parts);
  return parts;
}

ReasoningSplitter::Parts ReasoningSplitter::Finish() {
  Parts parts;
  Advance(true, parts);
  return parts;
}

// Takes from `held_` what is decided; `last`: nothing follows.
void ReasoningSplitter::Advance(bool last, Parts& parts) {
  if (state_ == State::kStart) {
    const size_t begin = held_.find_first_not_of(kWhite);
    const std::string_view rest =
        begin == held_.npos ? std::string_view() : std::string_view(held_).substr(begin);
    if (!last && rest.size() < kOpenThink.size() && kOpenThink.substr(0, rest.size()) == rest)
      return;
    if (rest.substr(0, kOpenThink.size()) == kOpenThink) {
      held_.erase(0, begin + kOpenThink.size());
      state_ = State::kOpened;
    } else {
      state_ = State::kContent;
    }
  }
  if (state_ == State::kOpened) {
    held_.erase(0, std::min(held_.find_first_not_of(kWhite), held_.size()));
    if (held_.empty()) return;
    state_ = State::kReasoning;
  }
  if (state_ == State::kReasoning) {
    const size_t mark = mark_.empty() ? held_.npos : held_.find(mark_);
    const bool marked = mark < held_.find(kCloseThink);
    const size_t close = marked ? mark : held_.find(kCloseThink);
    size_t end = close;
    if (close == held_.npos) {
      const size_t begun =
          std::max(BegunTag(held_, kCloseThink), mark_.empty() ? 0 : BegunTag(held_, mark_));
      end = held_.size() - (last ? 0 : begun);
    }
    // White space before the tag is not known as such before the tag has come.
    size_t keep = end;
    while (keep > 0 && kWhite.find(held_[keep - 1]) != kWhite.npos) --keep;
    parts.reasoning = held_.substr(0, keep);
    if (close == held_.npos) {
      held_.erase(0, keep);
      if (last) held_.clear();
      return;
    }
    held_.erase(0, close + (marked ? 0 : kCloseThink.size()));
    state_ = State::kClosed;
  }
  if (state_ == State::kClosed) {
    held_.erase(0, std::min(held_.find_first_not_of(kWhite), held_.size()));
    if (held_.empty()) return;
    state_ = State::kContent;
  }
  parts.content = std::move(held_);
  held_.clear();
}

size_t BegunTag(std::string_view text, std::string_view tag) {
  for (size_t length = std::min(text.size(), tag.size() - 1); length > 0; --length) {
    if (text.ends_with(tag.substr(0, length))) return length;
  }
  return 0;
}

bool EndsInThink(std::string_view prompt) {
  return WithoutWhiteEnd(prompt).ends_with(kOpenThink);
}

bool MayOpenThink(std::string_view chat_template, std::string_view prompt) {
  return chat_template.find(kOpenThink) != chat_template.npos && !EndsInThink(prompt) &&
         !WithoutWhiteEnd(prompt).ends_with(kCloseThink);
}

}  // namespace loopspec

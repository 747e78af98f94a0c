#include "decode/thinking.h"

#include "base/check.h"

namespace loopspec {

Thinking::Thinking(const std::optional<ThinkingLimit>& limit) {
  if (!limit) return;
  state_ = limit->thinking;
  ending_ = limit->ending;
  left_ = limit->tokens;
  EndWhenSpent();
}

void Thinking::Add(int32_t token) {
  if (!state_) return;
  const bool taken = state_->AdvanceToken(token);
  if (ends_) {
    LOOPSPEC_CHECK(taken);  // it was drawn from what the mark allows
    if (!state_->MustEnd()) return;
    state_.reset();
    ends_ = false;
    return;
  }
  // A token without text leaves free text where it was.
  if (!state_->IsFree()) {
    state_.reset();
    return;
  }
  --left_;
  EndWhenSpent();
}

void Thinking::EndWhenSpent() {
  if (left_ > 0) return;
  state_ = ending_;
  ends_ = true;
}

}  // namespace loopspec

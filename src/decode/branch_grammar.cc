#include "decode/branch_grammar.h"

#include <memory>

#include "base/check.h"
#include "base/error.h"
#include "decode/branch_tree.h"

namespace loopspec {
namespace {

// Forced bytes that are looked for at once.
constexpr size_t kMostForced = 64;

}  // namespace

BranchGrammar::BranchGrammar(const std::optional<grammar::State>& start, int capacity,
                             const Encode& encode, const std::optional<ThinkingLimit>& limit)
    : encode_(encode),
      has_grammar_(start.has_value()),
      decided_(start),
      thinking_(limit),
      places_(start || limit ? static_cast<size_t>(capacity) : 0) {
  if (places_.empty()) return;
  const grammar::State& any = start ? *start : limit->thinking;
  nothing_ = std::make_shared<const std::vector<uint32_t>>(any.NextTokens()->size(), 0u);
}

// States are made when they are reached, within a bound on their memory: what goes wrong ends this
// request and no other.
std::optional<grammar::State> BranchGrammar::After(const std::optional<grammar::State>& state,
                                                   int32_t token, std::string& error) {
  if (!state) return std::nullopt;
  try {
    grammar::State next = *state;
    LOOPSPEC_CHECK(next.AdvanceToken(token));  // it was drawn from what the mask allows
    return next;
  } catch (const Error& failure) {
    error = failure.what();
    return std::nullopt;
  }
}

void BranchGrammar::Spawn(int32_t branch, int32_t parent, int32_t token) {
  if (places_.empty()) return;
  Place& place = places_[static_cast<size_t>(branch)];
  place.mask = nullptr;
  place.nothing = nothing_;
  place.forced = nullptr;
  if (parent == kNoBranch) {
    place.error = error_;
    place.state = decided_;
    place.thinking = thinking_;
  } else {
    const Place& before = places_[static_cast<size_t>(parent)];
    place.error = before.error;
    place.state = After(before.state, token, place.error);
    place.thinking = before.thinking;
    place.thinking.Add(token);
    // A run of forced tokens is cut once, for all branches that follow it.
    if (before.forced != nullptr && before.forced_at + 1 < before.forced->size() &&
        (*before.forced)[before.forced_at] == token) {
      place.forced = before.forced;
      place.forced_at = before.forced_at + 1;
    }
  }
}

void BranchGrammar::Commit(int32_t token) {
  if (places_.empty()) return;
  decided_ = After(decided_, token, error_);
  thinking_.Add(token);
}

// By taking the token: a mask is made when a readout wants it, while the rows of its step advance.
bool BranchGrammar::Allows(int32_t branch, int32_t token) const {
  if (places_.empty()) return true;
  const Place& place = places_[static_cast<size_t>(branch)];
  std::optional<grammar::State> state = place.state;
  try {
    if (const grammar::State* ending = place.thinking.Ending()) {
      grammar::State mark = *ending;
      return mark.AdvanceToken(token);
    }
    if (!has_grammar_) return true;
    return state && state->AdvanceToken(token);
  } catch (const Error&) {
    return false;
  }
}

int32_t BranchGrammar::Forced(int32_t branch) {
  if (places_.empty() || !encode_) return -1;
  Place& place = places_[static_cast<size_t>(branch)];
  if (place.forced == nullptr) {
    place.forced_at = 0;
    std::string bytes;
    try {
      const grammar::State* ending = place.thinking.Ending();
      const grammar::State* state = ending ? ending : place.state ? &*place.state : nullptr;
      if (state) bytes = state->ForcedBytes(kMostForced, true);
    } catch (const Error&) {
      // Nothing is guessed; who needs the state is told.
    }
    place.forced = std::make_shared<const std::vector<int32_t>>(
        bytes.empty() ? std::vector<int32_t>() : encode_(bytes));
  }
  return place.forced_at < place.forced->size() ? (*place.forced)[place.forced_at] : -1;
}

TokenMask* BranchGrammar::MaskOf(int32_t branch) {
  if (places_.empty()) return nullptr;
  Place& place = places_[static_cast<size_t>(branch)];
  return has_grammar_ || place.thinking.Ending() ? &place : nullptr;
}

const std::string* BranchGrammar::Stuck(int32_t branch) const {
  if (places_.empty()) return nullptr;
  const std::string& error = places_[static_cast<size_t>(branch)].error;
  return error.empty() ? nullptr : &error;
}

std::span<const uint32_t> BranchGrammar::Place::Words() {
  if (mask != nullptr) return *mask;
  mask = nothing;
  const grammar::State* next = thinking.Ending();
  if (next == nullptr && state) next = &*state;
  if (next == nullptr) return *mask;
  try {
    mask = next->NextTokens();
    if (*mask == *nothing) error = "the model has no token for what the grammar wants next";
  } catch (const Error& failure) {
    error = failure.what();
  }
  return *mask;
}

}  // namespace loopspec

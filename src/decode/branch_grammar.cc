#include "decode/branch_grammar.h"

#include <memory>

#include "base/check.h"
#include "base/error.h"
#include "decode/branch_tree.h"
#include "sampling/filters.h"

namespace loopspec {

BranchGrammar::BranchGrammar(const std::optional<grammar::State>& start, int capacity)
    : decided_(start), places_(start ? static_cast<size_t>(capacity) : 0) {
  if (start)
    nothing_ = std::make_shared<const std::vector<uint32_t>>(start->NextTokens()->size(), 0u);
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
  if (parent == kNoBranch) {
    place.error = error_;
    place.state = decided_;
  } else {
    place.error = places_[static_cast<size_t>(parent)].error;
    place.state = After(places_[static_cast<size_t>(parent)].state, token, place.error);
  }
}

void BranchGrammar::Commit(int32_t token) {
  if (!places_.empty()) decided_ = After(decided_, token, error_);
}

bool BranchGrammar::Allows(int32_t branch, int32_t token) {
  return places_.empty() ||
         loopspec::Allows(places_[static_cast<size_t>(branch)].Words().data(), token);
}

TokenMask* BranchGrammar::MaskOf(int32_t branch) {
  return places_.empty() ? nullptr : &places_[static_cast<size_t>(branch)];
}

const std::string* BranchGrammar::Stuck(int32_t branch) const {
  if (places_.empty()) return nullptr;
  const std::string& error = places_[static_cast<size_t>(branch)].error;
  return error.empty() ? nullptr : &error;
}

std::span<const uint32_t> BranchGrammar::Place::Words() {
  if (mask != nullptr) return *mask;
  mask = nothing;
  if (!state) return *mask;
  try {
    mask = state->NextTokens();
    if (*mask == *nothing) error = "the model has no token for what the grammar wants next";
  } catch (const Error& failure) {
    error = failure.what();
  }
  return *mask;
}

}  // namespace loopspec

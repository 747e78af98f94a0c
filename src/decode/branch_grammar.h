// The grammar of one request along its branches, and the limit on its thinking. A branch is its
// prefix, so it has a grammar state of its own: that of its parent, advanced by its token. All its
// drafts, and its verdict, are masked by what that state allows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/backend.h"
#include "decode/thinking.h"
#include "grammar/grammar.h"

namespace loopspec {

class BranchGrammar {
 public:
  // The tokens of a text, as the tokenizer cuts it.
  using Encode = std::function<std::vector<int32_t>(std::string_view text)>;

  // `start`: the state before the first decoded token; none: there is no grammar. Branches have
  // numbers below `capacity`. `encode` null: nothing is forced.
  BranchGrammar(const std::optional<grammar::State>& start, int capacity, const Encode& encode,
                const std::optional<ThinkingLimit>& limit = {});

  // A branch begins on a token that its parent allows, or, without a parent, on the decided text.
  void Spawn(int32_t branch, int32_t parent, int32_t token);
  // A token was decided.
  void Commit(int32_t token);

  // Whether the token may follow the branch.
  bool Allows(int32_t branch, int32_t token) const;
  // The token that what the grammar forces after the branch begins with, white space left out; -1:
  // nothing is forced. A guess, since the same bytes can be other tokens.
  int32_t Forced(int32_t branch);
  // What may follow the branch, made when it is first asked for; null: everything.
  TokenMask* MaskOf(int32_t branch);
  // Why nothing can follow the branch, in one sentence; null: something can. A branch whose mask
  // has not been asked for counts as one that something can follow.
  const std::string* Stuck(int32_t branch) const;

 private:
  // A branch's own.
  class Place : public TokenMask {
   public:
    std::optional<grammar::State> state;  // none: there is no grammar, or it could not be made
    Thinking thinking;
    grammar::Mask mask;     // null: not made yet
    grammar::Mask nothing;  // a mask that allows no token
    std::string error;
    // Tokens that the grammar forces here, the next one at `forced_at`; null: not known yet.
    std::shared_ptr<const std::vector<int32_t>> forced;
    size_t forced_at = 0;

    std::span<const uint32_t> Words() override;
  };
  // The state after one token more. Where the grammar does not allow it: nothing, and the reason in
  // `error`.
  static std::optional<grammar::State> After(const std::optional<grammar::State>& state,
                                             int32_t token, std::string& error);

  const Encode encode_;
  const bool has_grammar_;
  std::optional<grammar::State> decided_;  // after the decided tokens
  Thinking thinking_;                      // after the decided tokens
  std::string error_;                      // why there is no such state
  std::vector<Place> places_;              // by branch; empty: every token is allowed everywhere
  grammar::Mask nothing_;
};

}  // namespace loopspec

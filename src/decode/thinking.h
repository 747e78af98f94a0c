// How long a model may think before it answers. The rule looks at the tokens of a branch alone, so
// that every schedule decides the same text.
#pragma once

#include <cstdint>
#include <optional>

#include "grammar/grammar.h"

namespace loopspec {

// Of a request whose answer begins within the model's thinking.
struct ThinkingLimit {
  grammar::State thinking;  // free until the mark that ends it has come
  grammar::State ending;    // the mark alone
  int tokens = 0;           // after this many tokens of thinking nothing but the mark may come
};

// The thinking of one branch.
class Thinking {
 public:
  Thinking() = default;
  explicit Thinking(const std::optional<ThinkingLimit>& limit);

  // The branch goes on with a token, which its ending allows.
  void Add(int32_t token);
  // Where in the mark the branch is, when nothing else may come; null: anything may.
  const grammar::State* Ending() const { return ends_ ? &*state_ : nullptr; }

 private:
  void EndWhenSpent();

  std::optional<grammar::State> state_;  // none: the model does not think any more, or has no limit
  std::optional<grammar::State> ending_;
  int left_ = 0;  // tokens
  bool ends_ = false;
};

}  // namespace loopspec

// The grammars that requests ask for, over one model's vocabulary: each source is compiled once, in
// the thread of who asks first, and kept for the next.
#pragma once

#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "decode/thinking.h"
#include "engine/load/loaded_model.h"
#include "grammar/grammar.h"
#include "loopspec/request.h"

namespace loopspec {

class Grammars {
 public:
  // Grammars are kept up to 32 of them and up to `most_bytes`, with the states and masks that texts
  // have made; the last one stays in any case.
  explicit Grammars(std::shared_ptr<const LoadedModel> loaded,
                    size_t most_bytes = size_t{512} << 20)
      : loaded_(std::move(loaded)), most_bytes_(most_bytes) {}

  // Throws Error for a source that is wrong or cannot be enforced, and where the model has no
  // tokenizer or no token that ends a text. Any thread.
  std::shared_ptr<grammar::Grammar> Get(const GrammarSource& source);

  // Where the answer to a prompt begins: at the grammar's start, or in the free text before the end
  // of thinking and before the source's own mark. None where there is no grammar. `chat`: the
  // answer may begin with thinking of its own.
  std::optional<grammar::State> StartAfter(std::span<const int32_t> prompt,
                                           const GrammarSource& source, bool chat);

  // Where the prompt ends in <think>: a limit on the tokens of the thinking that follows.
  std::optional<ThinkingLimit> LimitThinking(std::span<const int32_t> prompt, int tokens);

  // Sources that were compiled so far.
  int64_t compiled() const;

 private:
  using Compiled = std::shared_ptr<grammar::Grammar>;
  struct Entry {
    std::shared_future<Compiled> grammar;
    uint64_t used;  // when, by uses_
  };

  // The text of a prompt's last tokens.
  std::string TailOf(std::span<const int32_t> prompt) const;
  Compiled Compile(const GrammarSource& source);
  // Forgets those that were not asked for longest, until the others are within the bounds.
  void Trim();
  grammar::Grammar::VocabularyPtr Vocabulary();

  const std::shared_ptr<const LoadedModel> loaded_;
  const size_t most_bytes_;
  std::once_flag vocabulary_made_;
  grammar::Grammar::VocabularyPtr vocabulary_;

  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;  // by kind, strictness and text
  uint64_t uses_ = 0;
  int64_t compiled_ = 0;
};

}  // namespace loopspec

// Text that is always valid: a JSON schema, a regular expression or an EBNF as an automaton over
// bytes, and which tokens of a vocabulary may come next.
//
//   Grammar is what was compiled, shared by all who use it. State is a place in a text: a branch of
//   the decoder has its own, copies are cheap, and advancing one does not touch another. Mask says
//   which tokens may follow. All of it may be used from any thread.
//
// Every text that a grammar allows is a prefix of a valid one: no state is a dead end. What cannot
// be enforced is refused when the grammar is compiled. See docs/grammars.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/vocabulary.h"

namespace loopspec::grammar {

class Grammar;
struct Rules;
struct Tables;

// Bit id % 32 of word id / 32 is set when the token may come next.
using Mask = std::shared_ptr<const std::vector<uint32_t>>;

class State {
 public:
  // Takes the bytes and returns true, or returns false and stays as it was when they cannot follow.
  bool Advance(std::string_view bytes);
  // The same for a token of the vocabulary. A token that ends the text is taken where the text may
  // end, and nothing can follow it.
  bool AdvanceToken(int32_t id);
  // How many of the bytes can follow here: bytes.size() when all can.
  size_t CountValid(std::string_view bytes) const;

  // Whether the text is complete as it is, so that the tokens that end it are allowed.
  bool MayEnd() const;
  // Whether it is complete and nothing can follow but its end.
  bool MustEnd() const;
  // Whether a token that ends the text has been taken.
  bool ended() const { return ended_; }
  // Before the mark that starts the grammar: every token is allowed, also special ones; those that
  // end the text where the mark need not come.
  bool IsFree() const;

  // The tokens that may come next. Where the text may end those that end it are among them.
  Mask NextTokens() const;
  // The bytes that must come next, at most `most` of them. `without_space`: white space that JSON
  // allows between values but does not need counts as not allowed; the bytes are then a guess.
  std::string ForcedBytes(size_t most, bool without_space = false) const;

  // Equal states allow the same texts from here on. The converse need not hold.
  bool operator==(const State& other) const = default;

 private:
  friend class Grammar;
  State(std::shared_ptr<Tables> tables, uint32_t state)
      : tables_(std::move(tables)), state_(state) {}
  std::shared_ptr<Tables> tables_;
  uint32_t state_;
  bool ended_ = false;
};

enum class PropertyOrder {
  // As in the schema: `properties` in their order, then `required` names that are not among them,
  // then other names. What generates text wants this: the order is the author's.
  kDeclared,
  // Any. What checks a text wants this.
  kAny,
};

// White space between the tokens of a JSON text.
enum class JsonSpace {
  kNone,
  // What is usually written: nothing before a colon or a comma, nothing or one space after a colon;
  // elsewhere nothing, one space, or a line break and up to 32 spaces or tabs. What generates text
  // wants this, since models that may write space forever do.
  kUsual,
  // Up to 64 spaces, tabs and newlines wherever JSON allows them. What checks a text wants this.
  kAny,
};

struct SchemaOptions {
  // A keyword that cannot be enforced: an Error that names it, or ignored and listed.
  bool strict = true;
  PropertyOrder order = PropertyOrder::kDeclared;
  JsonSpace space = JsonSpace::kAny;
};

// What free text before a grammar leads up to, such as the end of thinking.
struct Mark {
  std::string text;
  // Whether the text may also end without it.
  bool may_end = false;
  // Up to 16 spaces, tabs and newlines may stand between the mark and the grammar, no part of
  // either.
  bool space = false;
  // Not empty: the free text must begin with this, after white space or not; where it does not, the
  // text goes on as if this mark was not asked for.
  std::string open = {};
};

class Grammar {
 public:
  // `vocabulary` may be null where no masks are asked for. Each throws Error, in one sentence, for
  // what is wrong, cannot be enforced or is too large.
  using VocabularyPtr = std::shared_ptr<const Vocabulary>;
  // The whole text matches the expression.
  static std::shared_ptr<Grammar> FromRegex(std::string_view pattern, VocabularyPtr vocabulary);
  // llama.cpp's GBNF with elements of our own; the text is the rule `root`. The options are those
  // of the schemas in it.
  static std::shared_ptr<Grammar> FromGbnf(std::string_view text, VocabularyPtr vocabulary,
                                           const SchemaOptions& options = {});
  // The schema as JSON text.
  static std::shared_ptr<Grammar> FromSchema(std::string_view schema, VocabularyPtr vocabulary,
                                             const SchemaOptions& options = {});

  ~Grammar();

  // The start of a text.
  State Start();
  // The start of a text that is free until the first mark has come, then until the next, up to the
  // last; the grammar holds from the byte after it. A mark may come in any number of tokens, one of
  // them may be special, and a token may hold its end and more.
  State StartAfter(std::span<const Mark> marks);

  // Bytes that it takes, about, with the states and masks that its texts have made so far.
  size_t memory() const;

  // Keywords that were ignored, each once, in the order in which they were found.
  const std::vector<std::string>& ignored() const { return ignored_; }
  const VocabularyPtr& vocabulary() const { return vocabulary_; }

 private:
  explicit Grammar(VocabularyPtr vocabulary);
  static std::shared_ptr<Grammar> Finish(std::unique_ptr<Rules> rules, VocabularyPtr vocabulary);

  struct Starts;
  VocabularyPtr vocabulary_;
  std::unique_ptr<const Rules> rules_;
  std::vector<std::string> ignored_;
  std::unique_ptr<Starts> starts_;
};

}  // namespace loopspec::grammar

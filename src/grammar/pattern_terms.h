// A pattern as it is written: what pattern_parser.cc reads and pattern.cc turns into a language.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "grammar/characters.h"

namespace loopspec::grammar {

struct Term;
using Sequence = std::vector<Term>;
using Choices = std::vector<Sequence>;

// One piece of a parsed pattern.
struct Term {
  enum Kind {
    kSet,
    kGroup,
    kBegin,
    kEnd,
    kAhead,
    kNotAhead,
    kBehind,
    kNotBehind,
    kBoundary,
    kNoBoundary
  } kind;
  CharacterSet set;                // kSet
  std::shared_ptr<Choices> group;  // kGroup, and what is looked for ahead or behind
  uint32_t min = 1;
  uint32_t max = 1;
};

inline bool IsAhead(const Term& term) {
  return term.kind == Term::kAhead || term.kind == Term::kNotAhead;
}
inline bool IsBehind(const Term& term) {
  return term.kind == Term::kBehind || term.kind == Term::kNotBehind;
}
inline bool IsBoundary(const Term& term) {
  return term.kind == Term::kBoundary || term.kind == Term::kNoBoundary;
}
inline bool Quantified(const Term& term) {
  return term.min != 1 || term.max != 1;
}

// What \w is.
const CharacterSet& WordCharacters();

// Throws Error naming what is wrong or not supported.
Choices ParseTerms(std::string_view pattern);

// The same language with fewer groups and assertions: a group with one choice that is not repeated
// becomes part of what it stands in, and lookahead for one character before a character that must
// come becomes a smaller set.
Choices Simplified(const Choices& choices);

}  // namespace loopspec::grammar

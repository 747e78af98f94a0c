// The same language in fewer terms: see pattern_terms.h.
#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "grammar/pattern_terms.h"
#include "grammar/regular.h"

namespace loopspec::grammar {
namespace {

// The set of a group whose choices are one character each.
std::optional<CharacterSet> OneCharacter(const Choices& choices) {
  CharacterSet set;
  for (const Sequence& sequence : choices) {
    if (sequence.size() != 1 || sequence[0].kind != Term::kSet || Quantified(sequence[0])) {
      return std::nullopt;
    }
    set.Add(sequence[0].set);
  }
  return set;
}

// Appends a character that must come, which a lookahead before it limits to `seen`.
void AppendLimited(const Term& character, const CharacterSet& seen, Sequence& sequence) {
  sequence.push_back({Term::kSet, character.set.Intersect(seen), nullptr});
  if (!Quantified(character)) return;
  Term more = character;
  --more.min;
  if (more.max != kUnbounded) --more.max;
  if (more.max > 0) sequence.push_back(std::move(more));
}

void Append(const Term& term, Sequence& sequence) {
  Term simple = term;
  if (term.group) simple.group = std::make_shared<Choices>(Simplified(*term.group));
  if (term.kind == Term::kGroup && !Quantified(term) && simple.group->size() == 1) {
    Sequence& inner = simple.group->front();
    sequence.insert(sequence.end(), std::make_move_iterator(inner.begin()),
                    std::make_move_iterator(inner.end()));
  } else {
    sequence.push_back(std::move(simple));
  }
}

}  // namespace

Choices Simplified(const Choices& choices) {
  Choices result;
  for (const Sequence& sequence : choices) {
    Sequence flat;
    for (const Term& term : sequence) Append(term, flat);
    // From the end, so that several lookaheads before one character all limit it.
    Sequence& simple = result.emplace_back();
    for (size_t i = flat.size(); i-- > 0;) {
      Term& term = flat[i];
      const bool comes = !simple.empty() && simple.back().kind == Term::kSet &&
                         simple.back().min > 0 && simple.back().max > 0;
      const auto seen = IsAhead(term) && comes ? OneCharacter(*term.group) : std::nullopt;
      if (!seen) {
        simple.push_back(std::move(term));
        continue;
      }
      const Term character = std::move(simple.back());
      simple.pop_back();
      Sequence limited;
      AppendLimited(character, term.kind == Term::kAhead ? *seen : seen->Complement(), limited);
      simple.insert(simple.end(), limited.rbegin(), limited.rend());
    }
    std::ranges::reverse(simple);
  }
  return result;
}

}  // namespace loopspec::grammar

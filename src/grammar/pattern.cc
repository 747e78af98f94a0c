#include "grammar/pattern.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "grammar/pattern_terms.h"

namespace loopspec::grammar {
namespace {

// A parsed pattern to a node. `open_start`: what stands at the start of the text may be preceded by
// anything, unless the pattern says ^; `open_end` the same for the end.
class PatternBuilder {
 public:
  // `past_start`: something stands before the pattern, so that ^ is nowhere true.
  PatternBuilder(Regular& regular, std::string_view pattern, Writing writing, bool past_start)
      : regular_(regular), pattern_(pattern), writing_(writing), past_start_(past_start) {
    anything_ = regular.Repeat(CharacterNode(regular, CharacterSet::All(), writing), 0, kUnbounded);
  }

  struct Edges {
    bool at_start, at_end;      // nothing of the pattern stands before or after
    bool open_start, open_end;  // and anything may
  };

  Node Build(const Choices& choices, const Edges& edges) {
    std::vector<Node> nodes;
    for (const Sequence& sequence : choices) nodes.push_back(BuildSequence(sequence, edges));
    return regular_.Or(std::move(nodes));
  }

 private:
  // Whether an assertion stands anywhere within.
  static bool Asserts(const Choices& choices) {
    for (const Sequence& sequence : choices) {
      for (const Term& term : sequence) {
        if (term.kind != Term::kSet && (term.kind != Term::kGroup || Asserts(*term.group))) {
          return true;
        }
      }
    }
    return false;
  }

  [[noreturn]] void RejectAssertion(std::string_view what) const {
    Fail("the pattern {} has {} where it cannot be enforced", pattern_.substr(0, 200), what);
  }

  // From the end to the start, so that what follows a lookahead is known.
  Node BuildSequence(const Sequence& sequence, const Edges& edges) {
    if (past_start_ && std::ranges::any_of(sequence, IsBegin)) return kNothing;
    size_t end = sequence.size();
    size_t start = 0;
    Edges inner = edges;
    while (end > start && sequence[end - 1].kind == Term::kEnd) {
      if (!edges.at_end) RejectAssertion("$");
      inner.open_end = false;
      --end;
    }
    while (start < end && sequence[start].kind == Term::kBegin) {
      if (!edges.at_start) RejectAssertion("^");
      inner.open_start = false;
      ++start;
    }
    // What has no width leaves ^ at the start.
    size_t width = start;
    while (width < end && (IsAhead(sequence[width]) || IsBegin(sequence[width]))) {
      if (IsBegin(sequence[width]) && edges.at_start) inner.open_start = false;
      ++width;
    }
    // Whether nothing of the text stands before the first term.
    const bool is_start = edges.at_start && !inner.open_start && !past_start_;
    Node rest = kEmpty;
    bool rest_is_edge = true;  // nothing of the pattern follows within this sequence
    bool closed_end = false;   // what follows has its own way of ending
    for (size_t i = end; i-- > start;) {
      const Term& term = sequence[i];
      if (IsAhead(term)) {
        if (!edges.at_end) RejectAssertion("lookahead");
        if (rest_is_edge && inner.open_end) rest = anything_;
        const Node ahead = Build(*term.group, {is_start && i < width, true, false, true});
        rest = regular_.And({term.kind == Term::kAhead ? ahead : regular_.Not(ahead), rest});
        rest_is_edge = false;
        closed_end = true;
        continue;
      }
      if (IsBehind(term) || IsBoundary(term)) {
        if (rest_is_edge && edges.at_end && inner.open_end) rest = anything_;
        return BuildBehind(sequence, i, edges, rest);
      }
      if (IsBegin(term) && edges.at_start && i < width) continue;
      if (IsBegin(term)) RejectAssertion("^");
      if (term.kind == Term::kEnd) RejectAssertion("$");
      const bool asserts = term.kind == Term::kGroup && Asserts(*term.group);
      if (asserts && Quantified(term)) RejectAssertion("an assertion in a repeated group");
      Node node = kNothing;
      if (asserts) {
        // The group takes care of the edges that it stands at.
        const Edges group{edges.at_start && i == start, edges.at_end && rest_is_edge,
                          inner.open_start, inner.open_end};
        node = Build(*term.group, group);
        if (group.at_start) inner.open_start = false;
        if (group.at_end) closed_end = true;
      } else {
        node = term.kind == Term::kSet ? CharacterNode(regular_, term.set, writing_)
                                       : Build(*term.group, {false, false, false, false});
        node = regular_.Repeat(node, term.min, term.max);
        if (rest_is_edge && inner.open_end && edges.at_end) {
          rest = anything_;
          closed_end = true;
        }
      }
      rest = regular_.Concat(node, rest);
      rest_is_edge = false;
    }
    if (rest_is_edge && !closed_end && inner.open_end && edges.at_end) rest = anything_;
    if (inner.open_start && edges.at_start) rest = regular_.Concat(anything_, rest);
    return rest;
  }

  // What stands before term i of the sequence, which looks back at it, and then `rest`.
  Node BuildBehind(const Sequence& sequence, size_t i, const Edges& edges, Node rest) {
    const Term& term = sequence[i];
    // What is looked at may begin before the sequence does.
    if (!edges.at_start) RejectAssertion(IsBehind(term) ? "lookbehind" : "a word boundary");
    const Sequence before(sequence.begin(), sequence.begin() + static_cast<std::ptrdiff_t>(i));
    const Node left = BuildSequence(before, {true, false, edges.open_start, false});
    if (IsBehind(term)) {
      const Node behind = Build(*term.group, {true, false, true, false});
      return regular_.Concat(
          regular_.And({left, term.kind == Term::kBehind ? behind : regular_.Not(behind)}), rest);
    }
    // The next character decides: it is in the rest, or the rest may be empty and nothing follows.
    if (!edges.at_end && regular_.Nullable(rest)) RejectAssertion("a word boundary");
    const Node word = CharacterNode(regular_, WordCharacters(), writing_);
    const Node ends = regular_.Concat(anything_, word);
    const Node starts = regular_.Concat(word, anything_);
    const auto both = [&](Node end, Node start) {
      return regular_.Concat(regular_.And({left, end}), regular_.And({rest, start}));
    };
    const Node not_ends = regular_.Not(ends);
    const Node not_starts = regular_.Not(starts);
    return term.kind == Term::kBoundary
               ? regular_.Or({both(ends, not_starts), both(not_ends, starts)})
               : regular_.Or({both(ends, starts), both(not_ends, not_starts)});
  }

  static bool IsBegin(const Term& term) { return term.kind == Term::kBegin; }

  Regular& regular_;
  std::string_view pattern_;
  Writing writing_;
  bool past_start_;
  Node anything_;
};

// Whether lookahead has a ^, and whether anything looks back.
struct Looks {
  bool begin_ahead = false, back = false;
};
Looks LooksOf(const Choices& choices, bool ahead) {
  Looks looks;
  for (const Sequence& sequence : choices) {
    for (const Term& term : sequence) {
      looks.begin_ahead = looks.begin_ahead || (ahead && term.kind == Term::kBegin);
      looks.back = looks.back || IsBehind(term) || IsBoundary(term);
      if (!term.group) continue;
      const Looks inner = LooksOf(*term.group, ahead || IsAhead(term));
      looks.begin_ahead = looks.begin_ahead || inner.begin_ahead;
      looks.back = looks.back || inner.back;
    }
  }
  return looks;
}

}  // namespace

Node ParsePattern(Regular& regular, std::string_view pattern, Writing writing,
                  Anchoring anchoring) {
  const Choices choices = Simplified(ParseTerms(pattern));
  const bool open = anchoring == Anchoring::kSearch;
  PatternBuilder builder(regular, pattern, writing, false);
  const Looks looks = LooksOf(choices, false);
  if (!open || !looks.begin_ahead || looks.back) {
    return builder.Build(choices, {true, true, open, open});
  }
  // Found at the start of the text, or after at least one character.
  const Node any = CharacterNode(regular, CharacterSet::All(), writing);
  PatternBuilder later(regular, pattern, writing, true);
  return regular.Or({builder.Build(choices, {true, true, false, true}),
                     regular.Concat({regular.Repeat(any, 1, kUnbounded),
                                     later.Build(choices, {true, true, false, true})})});
}

}  // namespace loopspec::grammar

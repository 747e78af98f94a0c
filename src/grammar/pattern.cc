#include "grammar/pattern.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"

namespace loopspec::grammar {
namespace {

constexpr size_t kMaxPattern = 64 * 1024;
constexpr int kMaxNesting = 200;
constexpr uint32_t kMaxCount = 1'000'000;

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

bool Quantified(const Term& term) {
  return term.min != 1 || term.max != 1;
}

const CharacterSet& Digits() {
  static const CharacterSet set{{'0', '9'}};
  return set;
}
const CharacterSet& WordCharacters() {
  static const CharacterSet set{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return set;
}
const CharacterSet& Spaces() {
  static const CharacterSet set{
      {0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
      {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  return set;
}
const CharacterSet& LineEnds() {
  static const CharacterSet set{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
  return set;
}

class PatternParser {
 public:
  explicit PatternParser(std::string_view pattern) : pattern_(pattern) {
    if (pattern.size() > kMaxPattern) {
      Fail("a pattern has {} bytes, the most allowed is {}", pattern.size(), kMaxPattern);
    }
    if (!IsValidUtf8(pattern)) Fail("a pattern is not valid UTF-8");
    // Flags at the start, as Python and PCRE have them.
    if (pattern_.substr(0, 4) == "(?i)") {
      fold_case_ = true;
      at_ = 4;
    }
  }

  Choices Parse() {
    Choices choices = ParseChoices(0);
    if (at_ < pattern_.size()) Reject("has a closing parenthesis too many");
    return choices;
  }

 private:
  [[noreturn]] void Reject(std::string_view what) const {
    Fail("the pattern {} {} at byte {}", pattern_.substr(0, 200), what, at_);
  }
  bool AtEnd() const { return at_ >= pattern_.size(); }
  char Peek() const { return AtEnd() ? '\0' : pattern_[at_]; }
  bool Take(std::string_view text) {
    if (pattern_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }
  char32_t TakeCharacter() {
    if (AtEnd()) Reject("ends too early");
    const CodePoint character = DecodeUtf8(pattern_, at_);
    at_ += static_cast<size_t>(character.length);
    return character.value;
  }

  Choices ParseChoices(int nesting) {
    if (nesting > kMaxNesting) Reject("is nested too deeply");
    Choices choices(1);
    while (!AtEnd() && Peek() != ')') {
      if (Take("|")) {
        choices.emplace_back();
      } else {
        ParseTerm(choices.back(), nesting);
      }
    }
    return choices;
  }

  void ParseTerm(Sequence& sequence, int nesting) {
    if (Take("^")) {
      sequence.push_back({Term::kBegin, {}, nullptr});
    } else if (Take("$")) {
      sequence.push_back({Term::kEnd, {}, nullptr});
    } else if (Take("(")) {
      ParseGroup(sequence, nesting);
    } else if (Take("[")) {
      AddSet(sequence, ParseClass());
    } else if (Take(".")) {
      AddSet(sequence, LineEnds().Complement());
    } else if (Take("\\")) {
      ParseEscape(sequence);
    } else if (Peek() == '*' || Peek() == '+' || Peek() == '?') {
      Reject("has nothing to repeat");
    } else {
      const char32_t value = TakeCharacter();
      AddSet(sequence, {{value, value}});
    }
    ParseQuantifier(sequence);
  }

  void AddSet(Sequence& sequence, const CharacterSet& set) {
    sequence.push_back({Term::kSet, fold_case_ ? set.FoldCase() : set, nullptr});
  }

  void ParseGroup(Sequence& sequence, int nesting) {
    Term::Kind kind = Term::kGroup;
    if (Take("?:")) {
    } else if (Take("?=")) {
      kind = Term::kAhead;
    } else if (Take("?!")) {
      kind = Term::kNotAhead;
    } else if (Take("?<=")) {
      kind = Term::kBehind;
    } else if (Take("?<!")) {
      kind = Term::kNotBehind;
    } else if (Take("?P<") || Take("?<")) {
      while (!AtEnd() && Peek() != '>') ++at_;
      if (!Take(">")) Reject("has a group name without an end");
    } else if (Peek() == '?') {
      Reject("has a group of a kind that is not supported");
    }
    auto group = std::make_shared<Choices>(ParseChoices(nesting + 1));
    if (!Take(")")) Reject("has a group without an end");
    sequence.push_back({kind, {}, std::move(group)});
  }

  // The number after {, or kUnbounded where there is none.
  uint32_t TakeNumber() {
    uint64_t number = 0;
    bool any = false;
    while (Peek() >= '0' && Peek() <= '9' && !AtEnd()) {
      number = std::min<uint64_t>(number * 10 + static_cast<uint64_t>(Peek() - '0'), kMaxCount + 1);
      any = true;
      ++at_;
    }
    if (number > kMaxCount) Reject("repeats more than 1000000 times");
    return any ? static_cast<uint32_t>(number) : kUnbounded;
  }

  void ParseQuantifier(Sequence& sequence) {
    uint32_t min = 0;
    uint32_t max = kUnbounded;
    if (Take("*")) {
    } else if (Take("+")) {
      min = 1;
    } else if (Take("?")) {
      max = 1;
    } else if (Peek() == '{') {
      const size_t start = at_++;
      const uint32_t low = TakeNumber();
      uint32_t high = low;
      if (Take(",")) high = TakeNumber();
      if (low == kUnbounded || !Take("}")) {
        // As JavaScript and Python have it: a brace that is no count is a character.
        at_ = start;
        return;
      }
      min = low;
      max = high;
      if (max < min) Reject("has a count whose upper end is below its lower end");
    } else {
      return;
    }
    Term& term = sequence.back();
    if (term.kind != Term::kSet && term.kind != Term::kGroup) Reject("repeats an assertion");
    if (!Take("?") && Peek() == '+') Reject("has a possessive repetition");
    if (Peek() == '*' || Peek() == '?' || Peek() == '+') Reject("repeats a repetition");
    term.min = min;
    term.max = max;
  }

  uint32_t TakeHex(int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char c = Peek();
      uint32_t digit = 0;
      if (c >= '0' && c <= '9') {
        digit = static_cast<uint32_t>(c - '0');
      } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
        digit = static_cast<uint32_t>((c | 0x20) - 'a' + 10);
      } else {
        Reject("has an escape with too few hexadecimal digits");
      }
      value = value * 16 + digit;
      ++at_;
    }
    return value;
  }

  char32_t TakeUnicodeEscape() {
    uint32_t value = 0;
    if (Take("{")) {
      while (!AtEnd() && Peek() != '}') {
        value = value * 16 + TakeHex(1);
        if (value > 0x10FFFF) Reject("names a code point above U+10FFFF");
      }
      if (!Take("}")) Reject("has a \\u{ without an end");
    } else {
      value = TakeHex(4);
      if (value >= 0xD800 && value < 0xDC00 && Take("\\u")) {
        const uint32_t low = TakeHex(4);
        if (low < 0xDC00 || low > 0xDFFF) Reject("has half a pair of surrogates");
        value = 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
      }
    }
    return value;
  }

  // A class such as \d, where the escape after the backslash is one.
  bool TakeClassEscape(CharacterSet& set) {
    switch (Peek()) {
      case 'd':
        set = Digits();
        break;
      case 'D':
        set = Digits().Complement();
        break;
      case 'w':
        set = WordCharacters();
        break;
      case 'W':
        set = WordCharacters().Complement();
        break;
      case 's':
        set = Spaces();
        break;
      case 'S':
        set = Spaces().Complement();
        break;
      default:
        return false;
    }
    ++at_;
    return true;
  }

  // One character after a backslash.
  char32_t TakeEscapedCharacter(bool in_class) {
    const char32_t c = TakeCharacter();
    switch (c) {
      case 't':
        return '\t';
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case 'a':
        return '\a';
      case '0':
        if (Peek() >= '0' && Peek() <= '9') Reject("has an octal escape");
        return 0;
      case 'x':
        return TakeHex(2);
      case 'u':
        return TakeUnicodeEscape();
      case 'c': {
        const char32_t letter = TakeCharacter();
        return letter % 32;
      }
      case 'b':
        if (in_class) return '\b';
        break;
      case 'p':
      case 'P':
        Reject("has a Unicode property, which is not supported,");
      default:
        break;
    }
    if (c >= '1' && c <= '9') Reject("has a backreference, which cannot be enforced,");
    if (c == 'k') Reject("has a backreference, which cannot be enforced,");
    if (c < 0x80 && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))) {
      Reject("has an unknown escape");
    }
    return c;
  }

  void ParseEscape(Sequence& sequence) {
    CharacterSet set;
    if (TakeClassEscape(set)) {
      AddSet(sequence, set);
    } else if (Take("A")) {
      sequence.push_back({Term::kBegin, {}, nullptr});
    } else if (Take("Z") || Take("z")) {
      sequence.push_back({Term::kEnd, {}, nullptr});
    } else if (Take("b")) {
      sequence.push_back({Term::kBoundary, {}, nullptr});
    } else if (Take("B")) {
      sequence.push_back({Term::kNoBoundary, {}, nullptr});
    } else {
      const char32_t value = TakeEscapedCharacter(false);
      AddSet(sequence, {{value, value}});
    }
  }

  CharacterSet ParseClass() {
    const bool negated = Take("^");
    CharacterSet set;
    while (true) {
      if (AtEnd()) Reject("has a class without an end");
      // An empty class is JavaScript's, and matches nothing; others take the bracket as a member.
      if (Take("]")) break;
      CharacterSet part;
      char32_t low = 0;
      bool is_class = false;
      if (Take("\\")) {
        is_class = TakeClassEscape(part);
        if (!is_class) low = TakeEscapedCharacter(true);
      } else {
        if (pattern_.substr(at_, 2) == "[:") Reject("has a POSIX class, which is not supported,");
        low = TakeCharacter();
      }
      if (is_class) {
        set.Add(part);
        continue;
      }
      char32_t high = low;
      if (Peek() == '-' && at_ + 1 < pattern_.size() && pattern_[at_ + 1] != ']') {
        const size_t dash = at_++;
        if (Take("\\")) {
          CharacterSet ignored;
          if (TakeClassEscape(ignored)) {
            at_ = dash;  // a-\d: the dash is a member
          } else {
            high = TakeEscapedCharacter(true);
          }
        } else {
          high = TakeCharacter();
        }
        if (at_ == dash) {
          ++at_;
          set.Add('-', '-');
          high = low;
        }
      }
      if (high < low) Reject("has a range whose upper end is below its lower end");
      set.Add(low, high);
    }
    if (fold_case_) set = set.FoldCase();
    return negated ? set.Complement() : set;
  }

  std::string_view pattern_;
  size_t at_ = 0;
  bool fold_case_ = false;
};

// A parsed pattern to a node. `open_start`: what stands at the start of the text may be preceded by
// anything, unless the pattern says ^; `open_end` the same for the end.
class PatternBuilder {
 public:
  PatternBuilder(Regular& regular, std::string_view pattern, Writing writing)
      : regular_(regular), pattern_(pattern), writing_(writing) {
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
    Node rest = kEmpty;
    bool rest_is_edge = true;  // nothing of the pattern follows within this sequence
    bool closed_end = false;   // what follows has its own way of ending
    for (size_t i = end; i-- > start;) {
      const Term& term = sequence[i];
      if (IsAhead(term)) {
        if (!edges.at_end) RejectAssertion("lookahead");
        if (rest_is_edge && inner.open_end) rest = anything_;
        const Node ahead = Build(*term.group, {false, true, false, true});
        rest = regular_.And({term.kind == Term::kAhead ? ahead : regular_.Not(ahead), rest});
        rest_is_edge = false;
        closed_end = true;
        continue;
      }
      if (IsBehind(term) || IsBoundary(term)) {
        if (rest_is_edge && edges.at_end && inner.open_end) rest = anything_;
        return BuildBehind(sequence, i, edges, rest);
      }
      if (term.kind == Term::kBegin) RejectAssertion("^");
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

  static bool IsBehind(const Term& term) {
    return term.kind == Term::kBehind || term.kind == Term::kNotBehind;
  }
  static bool IsBoundary(const Term& term) {
    return term.kind == Term::kBoundary || term.kind == Term::kNoBoundary;
  }
  static bool IsAhead(const Term& term) {
    return term.kind == Term::kAhead || term.kind == Term::kNotAhead;
  }

  Regular& regular_;
  std::string_view pattern_;
  Writing writing_;
  Node anything_;
};

}  // namespace

Node ParsePattern(Regular& regular, std::string_view pattern, Writing writing,
                  Anchoring anchoring) {
  const Choices choices = PatternParser(pattern).Parse();
  const bool open = anchoring == Anchoring::kSearch;
  return PatternBuilder(regular, pattern, writing).Build(choices, {true, true, open, open});
}

}  // namespace loopspec::grammar

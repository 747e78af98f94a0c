// Reads a pattern.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"
#include "grammar/pattern_terms.h"
#include "grammar/unicode_properties.h"

namespace loopspec::grammar {
namespace {

constexpr size_t kMaxPattern = 64 * 1024;

const CharacterSet& Digits() {
  static const CharacterSet set{{'0', '9'}};
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
        if (value > kLastCodePoint) Reject("names a code point above U+10FFFF");
      }
      if (!Take("}")) Reject("has a \\u{ without an end");
    } else {
      value = TakeHex(4);
      const size_t after = at_;
      if (value >= 0xD800 && value < 0xDC00 && Take("\\u") && Peek() != '{') {
        const uint32_t low = TakeHex(4);
        if (low >= 0xDC00 && low <= 0xDFFF) {
          return 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
        }
      }
      // Half a pair is no character, so that no text has it; a set leaves it out.
      at_ = after;
    }
    return value;
  }

  // p{name} or P{name}.
  CharacterSet TakeProperty() {
    const size_t start = at_;
    const bool negated = Peek() == 'P';
    ++at_;
    if (!Take("{")) Reject("has a Unicode property without its name in braces");
    const size_t end = std::min(pattern_.find('}', at_), pattern_.size());
    const std::string_view name = pattern_.substr(at_, end - at_);
    const std::optional<CharacterSet> set = UnicodeProperty(name);
    if (!set) {
      at_ = start;
      Reject(
          fmt::format("has the Unicode property {}, which is not supported (general categories "
                      "such as L and Lu are),",
                      name.substr(0, 100)));
    }
    // Which letters a case belongs to is known for ASCII alone.
    if (fold_case_) Reject("has a Unicode property after (?i), which is not supported,");
    at_ = end;
    if (!Take("}")) Reject("has a Unicode property without an end");
    return negated ? set->Complement() : *set;
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
      case 'p':
      case 'P':
        set = TakeProperty();
        return true;
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

}  // namespace

const CharacterSet& WordCharacters() {
  static const CharacterSet set{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return set;
}

Choices ParseTerms(std::string_view pattern) {
  return PatternParser(pattern).Parse();
}

}  // namespace loopspec::grammar

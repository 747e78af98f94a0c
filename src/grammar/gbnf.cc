#include "grammar/gbnf.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "grammar/characters.h"
#include "grammar/json_schema.h"
#include "grammar/marks.h"

namespace loopspec::grammar {
namespace {

constexpr size_t kMaxText = size_t{4} << 20;

class GbnfParser {
 public:
  GbnfParser(std::string_view text, const SchemaOptions& options, Rules& rules)
      : text_(text), options_(options), rules_(rules) {}

  void Parse() {
    if (text_.size() > kMaxText) {
      Fail("the grammar has {} bytes, the most allowed is {}", text_.size(), kMaxText);
    }
    if (!IsValidUtf8(text_)) Fail("the grammar is not valid UTF-8");
    SkipSpace(true);
    while (!AtEnd()) ParseRule();
    for (const auto& [name, rule] : names_) {
      if (!rule.defined) Fail("the grammar uses the rule {}, which it does not define", name);
    }
    const auto root = names_.find("root");
    if (root == names_.end()) Fail("the grammar has no rule root, which it must start with");
    rules_.start = rules_.expressions.Rule(root->second.number);
  }
  std::vector<std::string> TakeIgnored() { return std::move(ignored_); }

 private:
  struct Named {
    uint32_t number;
    bool defined = false;
  };

  size_t Line() const {
    return 1 + static_cast<size_t>(std::ranges::count(text_.substr(0, at_), '\n'));
  }
  [[noreturn]] void Reject(std::string_view what) const {
    Fail("the grammar {} in line {}", what, Line());
  }
  bool AtEnd() const { return at_ >= text_.size(); }
  char Peek() const { return AtEnd() ? '\0' : text_[at_]; }
  bool Take(std::string_view text) {
    if (text_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }
  void SkipSpace(bool newlines) {
    while (!AtEnd()) {
      const char c = Peek();
      if (c == '#') {
        while (!AtEnd() && Peek() != '\n') ++at_;
      } else if (c == ' ' || c == '\t' || (newlines && (c == '\n' || c == '\r'))) {
        ++at_;
      } else {
        break;
      }
    }
  }

  static bool IsNameCharacter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  }
  std::string TakeName() {
    const size_t start = at_;
    while (!AtEnd() && IsNameCharacter(Peek())) ++at_;
    if (at_ == start) Reject("lacks the name of a rule");
    return std::string(text_.substr(start, at_ - start));
  }
  Named& Find(const std::string& name) {
    const auto found = names_.find(name);
    if (found != names_.end()) return found->second;
    return names_.emplace(name, Named{rules_.expressions.AddRule()}).first->second;
  }

  void ParseRule() {
    const std::string name = TakeName();
    SkipSpace(false);
    if (!Take("::=")) Reject("lacks ::= after a rule's name");
    SkipSpace(true);
    const Expression body = ParseChoices(0);
    Named& rule = Find(name);
    if (rule.defined) Reject("defines the rule " + name + " twice");
    rule.defined = true;
    rules_.expressions.SetRule(rule.number, body);
    if (!AtEnd() && Peek() != '\n' && Peek() != '\r')
      Reject("has something after the end of a rule");
    SkipSpace(true);
  }

  // `nesting` > 0: within parentheses, where a newline ends nothing.
  Expression ParseChoices(int nesting) {
    if (nesting > kMaxNesting) Reject("is nested too deeply");
    std::vector<Expression> choices{ParseSequence(nesting)};
    while (Take("|")) {
      SkipSpace(true);
      choices.push_back(ParseSequence(nesting));
    }
    return rules_.expressions.Choice(std::move(choices));
  }

  Expression ParseSequence(int nesting) {
    std::vector<Expression> parts;
    while (true) {
      Expression part = kNoText;
      const char c = Peek();
      if (AtEnd()) {
        break;
      } else if (Take("\"")) {
        part = ParseText();
      } else if (Take("[")) {
        part = ParseClass();
      } else if (Take("(")) {
        SkipSpace(true);
        part = ParseChoices(nesting + 1);
        if (!Take(")")) Reject("has a group without an end");
      } else if (Take(".")) {
        part = Characters(CharacterSet::All());
      } else if (Take("%")) {
        part = ParseExtension();
      } else if (IsNameCharacter(c)) {
        part = rules_.expressions.Rule(Find(TakeName()).number);
      } else {
        break;
      }
      part = ParseRepetition(part);
      parts.push_back(part);
      SkipSpace(nesting > 0);
    }
    Expression sequence = kEmptyText;
    for (size_t i = parts.size(); i-- > 0;) {
      sequence = rules_.expressions.Sequence(parts[i], sequence);
    }
    // A choice may go on in the next line.
    const size_t here = at_;
    SkipSpace(true);
    if (Peek() != '|') at_ = here;
    return sequence;
  }

  Expression Characters(const CharacterSet& set) {
    return rules_.expressions.Terminal(CharacterNode(rules_.regular, set, Writing::kUtf8));
  }

  uint32_t TakeCount() {
    uint32_t count = 0;
    if (Peek() < '0' || Peek() > '9') Reject("lacks a number in a repetition");
    while (Peek() >= '0' && Peek() <= '9') {
      count = count * 10 + static_cast<uint32_t>(text_[at_++] - '0');
      if (count > kMaxCount) Reject("repeats more than 1000000 times");
    }
    return count;
  }

  // A repetition of a regular language is one, which is quicker to read.
  Expression Repeated(Expression part, uint32_t min, uint32_t max) {
    const Expressions::Entry entry = rules_.expressions[part];
    if (entry.kind == Expressions::Kind::kTerminal && !TakesSpecial(entry.a)) {
      return rules_.expressions.Terminal(rules_.regular.Repeat(entry.a, min, max));
    }
    return rules_.expressions.Repeat(part, min, max);
  }

  Expression ParseRepetition(Expression part) {
    while (true) {
      if (Take("*")) {
        part = Repeated(part, 0, kUnbounded);
      } else if (Take("+")) {
        part = Repeated(part, 1, kUnbounded);
      } else if (Take("?")) {
        part = Repeated(part, 0, 1);
      } else if (Take("{")) {
        SkipSpace(false);
        const uint32_t min = TakeCount();
        uint32_t max = min;
        SkipSpace(false);
        if (Take(",")) {
          SkipSpace(false);
          max = Peek() == '}' ? kUnbounded : TakeCount();
          SkipSpace(false);
        }
        if (!Take("}")) Reject("has a repetition without an end");
        if (max < min) Reject("has a repetition whose upper end is below its lower end");
        part = Repeated(part, min, max);
      } else {
        return part;
      }
    }
  }

  uint32_t TakeHex(int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char c = Peek();
      if (c >= '0' && c <= '9') {
        value = value * 16 + static_cast<uint32_t>(c - '0');
      } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
        value = value * 16 + static_cast<uint32_t>((c | 0x20) - 'a' + 10);
      } else {
        Reject("has an escape with too few hexadecimal digits");
      }
      ++at_;
    }
    return value;
  }

  char32_t TakeCharacter() {
    if (AtEnd()) Reject("ends within quotes or brackets");
    if (!Take("\\")) {
      const CodePoint character = DecodeUtf8(text_, at_);
      at_ += static_cast<size_t>(character.length);
      return character.value;
    }
    if (AtEnd()) Reject("ends within an escape");
    uint32_t value = 0;
    switch (text_[at_++]) {
      case 'x':
        value = TakeHex(2);
        break;
      case 'u':
        value = TakeHex(4);
        break;
      case 'U':
        value = TakeHex(8);
        break;
      case 't':
        return '\t';
      case 'r':
        return '\r';
      case 'n':
        return '\n';
      case '\\':
        return '\\';
      case '"':
        return '"';
      case '[':
        return '[';
      case ']':
        return ']';
      case '-':
        return '-';
      case '^':
        return '^';
      case '/':
        return '/';
      default:
        Reject("has an unknown escape");
    }
    if (!IsCharacter(value)) Reject("names a code point that does not exist");
    return value;
  }

  std::string TakeText() {
    std::string text;
    while (!Take("\"")) AppendUtf8(TakeCharacter(), text);
    return text;
  }

  Expression ParseText() { return rules_.expressions.Terminal(rules_.regular.Text(TakeText())); }

  // What follows the percent sign of an element that llama.cpp does not have.
  Expression ParseExtension() {
    const std::string name = TakeName();
    SkipSpace(true);
    if (name == "json") return ParseSchema();
    if (name == "special") return ParseMark(MarkAlone, true);
    if (name == "without") return ParseMark(CharactersWithout, false);
    if (name != "until") {
      Reject("has the element %" + name + ", expected %json, %until, %without or %special,");
    }
    const bool special = Take("%special");
    SkipSpace(true);
    return ParseMark(CharactersUpTo, special);
  }

  static Table CharactersUpTo(std::string_view mark) {
    return UpToMark(mark, FreeText::kCharacters);
  }
  static Table CharactersWithout(std::string_view mark) {
    return WithoutMark(mark, FreeText::kCharacters);
  }

  // A text in quotes and what `make` makes of it. `special`: a special token may stand for it.
  Expression ParseMark(Table (*make)(std::string_view mark), bool special) {
    if (!Take("\"")) Reject("lacks the text in quotes after %until, %without or %special");
    const std::string mark = TakeText();
    if (mark.empty() || mark.size() > kLongestMark) {
      Reject("has a mark of " + std::to_string(mark.size()) + " bytes, expected 1 to " +
             std::to_string(kLongestMark) + ",");
    }
    const Node node = rules_.regular.FromTable(make(mark));
    if (special) rules_.specials.push_back({node, mark});
    return rules_.expressions.Terminal(node);
  }

  bool TakesSpecial(Node node) const {
    return std::ranges::any_of(
        rules_.specials, [&](const Rules::Special& special) { return special.table == node; });
  }

  // The JSON value that stands here: up to where its last bracket or its word ends.
  std::string_view TakeJson() {
    const size_t start = at_;
    int depth = 0;
    do {
      if (AtEnd()) Reject("ends within the schema of %json");
      const char c = text_[at_++];
      if (c == '{' || c == '[') ++depth;
      if (c == '}' || c == ']') --depth;
      if (c != '"') continue;
      while (!AtEnd() && Peek() != '"') at_ += Peek() == '\\' ? 2 : 1;
      ++at_;
    } while (depth > 0);
    return text_.substr(start, at_ - start);
  }

  Expression ParseSchema() {
    const std::string what = "the schema in line " + std::to_string(Line()) + " of the grammar";
    std::string_view text;
    for (const char* word : {"true", "false"}) {
      if (text.empty() && Take(word)) text = word;
    }
    if (text.empty() && Peek() != '{') Reject("lacks the schema after %json");
    if (text.empty()) text = TakeJson();
    const OrderedJson schema = ParseOrderedJson(text, what);
    CompiledSchema compiled = CompileSchema(schema, options_, rules_);
    for (std::string& keyword : compiled.ignored) {
      if (std::ranges::find(ignored_, keyword) == ignored_.end()) {
        ignored_.push_back(std::move(keyword));
      }
    }
    return compiled.texts;
  }

  Expression ParseClass() {
    const bool negated = Take("^");
    CharacterSet set;
    while (!Take("]")) {
      const char32_t low = TakeCharacter();
      char32_t high = low;
      if (Peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        high = TakeCharacter();
      }
      if (high < low) Reject("has a range whose upper end is below its lower end");
      set.Add(low, high);
    }
    return Characters(negated ? set.Complement() : set);
  }

  std::string_view text_;
  const SchemaOptions& options_;
  Rules& rules_;
  size_t at_ = 0;
  std::vector<std::string> ignored_;
  std::map<std::string, Named> names_;
};

}  // namespace

std::vector<std::string> ParseGbnf(std::string_view text, const SchemaOptions& options,
                                   Rules& rules) {
  GbnfParser parser(text, options, rules);
  parser.Parse();
  return parser.TakeIgnored();
}

}  // namespace loopspec::grammar

// What a tokenizer part searches for in text: a string or a regular expression.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"

namespace loopspec {

// A stretch of text that either matched a pattern or lies between matches. Spans of one search
// cover the text.
struct Span {
  uint32_t begin;
  uint32_t end;
  bool match;
};

class Pattern {
 public:
  static Pattern String(std::string text);
  // An expression in Oniguruma's (Ruby's) syntax. Throws Error naming `what` when it does not
  // compile.
  static Pattern Regex(std::string_view expression, std::string_view what);
  // {"String": "..."} or {"Regex": "..."}.
  static Pattern FromJson(const Json& json, std::string_view what);

  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

  // Replaces `spans` with the matches, left to right, and what lies between. `text` is valid UTF-8.
  void Find(std::string_view text, std::vector<Span>& spans) const;
  // The same, one after the other.
  void ForEach(std::string_view text, const std::function<void(const Span&)>& sink) const;
  // `text` with every match replaced by `content`; `zero` becomes the length of what the first
  // `zero` bytes gave.
  std::string Replace(std::string_view text, std::string_view content,
                      size_t* zero = nullptr) const;

  // The string searched for; empty for a regular expression.
  bool is_string() const { return regex_ == nullptr; }
  const std::string& string() const { return string_; }

 private:
  class CompiledRegex;
  Pattern();
  // Leftmost match at or after `from`; false when there is none.
  bool Search(std::string_view text, size_t from, size_t* begin, size_t* end) const;

  std::string string_;
  std::unique_ptr<CompiledRegex> regex_;
};

// Rewrites an expression of Oniguruma's Ruby syntax so that PCRE2 matches the same text: character
// classes with Oniguruma's members and Unicode version, and the operators that the two read
// differently.
std::string TranslateRegex(std::string_view expression);

}  // namespace loopspec

// Sets of code points, and how their characters are written in bytes: as UTF-8, or as the content
// of a JSON string, where every character also has escapes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "grammar/regular.h"

namespace loopspec::grammar {

// Sorted, disjoint ranges of code points, both ends included. Surrogates are never members.
class CharacterSet {
 public:
  CharacterSet() = default;
  CharacterSet(std::initializer_list<std::pair<char32_t, char32_t>> ranges);
  explicit CharacterSet(std::vector<std::pair<char32_t, char32_t>> ranges);
  static CharacterSet All() { return {{0, kLastCodePoint}}; }

  void Add(char32_t low, char32_t high);
  void Add(const CharacterSet& other);
  CharacterSet Complement() const;
  CharacterSet Intersect(const CharacterSet& other) const;
  // ASCII letters in both cases.
  CharacterSet FoldCase() const;
  bool Has(char32_t c) const;
  const std::vector<std::pair<char32_t, char32_t>>& ranges() const { return ranges_; }

 private:
  void Normalize();
  std::vector<std::pair<char32_t, char32_t>> ranges_;
};

enum class Writing {
  kUtf8,
  // Within the quotes of a JSON string: as it is where JSON allows it, or as any of its escapes.
  kJsonString,
};

// Characters that stand for themselves within a JSON string.
const CharacterSet& PlainInJson();
// A character that a JSON string may also write as a backslash and a letter.
struct ShortEscape {
  char32_t value;
  char letter;
};
inline constexpr ShortEscape kShortEscapes[] = {{'"', '"'},  {'\\', '\\'}, {'/', '/'},
                                                {'\b', 'b'}, {'\f', 'f'},  {'\n', 'n'},
                                                {'\r', 'r'}, {'\t', 't'}};

// One character of the set.
Node CharacterNode(Regular& regular, const CharacterSet& set, Writing writing);
// Exactly this text (valid UTF-8), in every way of writing it.
Node SpelledText(Regular& regular, std::string_view text, Writing writing);
// The text with its quotes as JSON is usually written: escapes where they are needed only.
std::string QuotedJson(std::string_view text);

}  // namespace loopspec::grammar

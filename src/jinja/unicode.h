// Text as Python sees it: code points, its idea of white space, letters and digits, and its case
// mappings. Strings are UTF-8 and valid; positions and lengths are counted in code points.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"

namespace loopspec::jinja {

// The code point at byte `*position`, which moves past it.
char32_t NextCodePoint(std::string_view text, size_t* position);
std::u32string Decode(std::string_view text);
std::string Encode(std::u32string_view text);
int64_t CountCodePoints(std::string_view text);

bool IsSpace(char32_t c);
bool IsLineBreak(char32_t c);
bool IsAlpha(char32_t c);
bool IsDecimal(char32_t c);
bool IsDigit(char32_t c);
bool IsNumeric(char32_t c);  // ideographs of numbers are letters here
bool IsUpper(char32_t c);
bool IsLower(char32_t c);
bool IsTitle(char32_t c);
bool IsPrintable(char32_t c);
bool IsIdentifierStart(char32_t c);
bool IsIdentifierPart(char32_t c);
inline bool IsAlnum(char32_t c) {
  return IsAlpha(c) || IsNumeric(c);
}
inline bool IsCased(char32_t c) {
  return IsUpper(c) || IsLower(c) || IsTitle(c);
}

std::string ToUpper(std::string_view text);
std::string ToLower(std::string_view text);
std::string ToTitle(std::string_view text);     // str.title
std::string Capitalize(std::string_view text);  // str.capitalize
// str.isupper or str.islower: something is cased, and all of that in this case.
bool IsCasedText(std::string_view text, bool upper);

// str.strip and its one-sided kin; with `chars` empty, white space.
std::string_view StripSpace(std::string_view text, bool left, bool right);
std::string_view StripChars(std::string_view text, std::string_view chars, bool left, bool right);
std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends);

}  // namespace loopspec::jinja

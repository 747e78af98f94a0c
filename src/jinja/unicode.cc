#include "jinja/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

namespace loopspec::jinja {
namespace {

struct Range {
  char32_t low, high;
};

template <size_t N>
bool InRanges(const Range (&ranges)[N], char32_t c) {
  const Range* it = std::upper_bound(std::begin(ranges), std::end(ranges), c,
                                     [](char32_t v, const Range& r) { return v < r.low; });
  return it != std::begin(ranges) && c <= std::prev(it)->high;
}

// Digits that are not decimal (superscripts, circled): Unicode's Numeric_Type=Digit outside
// category Nd.
constexpr Range kOtherDigits[] = {
    {0xB2, 0xB3},       {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},
    {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
    {0x2474, 0x247C},   {0x2488, 0x2490},   {0x24EA, 0x24EA},   {0x24F5, 0x24FD},
    {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},   {0x278A, 0x2792},
    {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}};

// Other_Uppercase and Other_Lowercase: cased, though not letters of category Lu or Ll.
constexpr Range kOtherUpper[] = {
    {0x2160, 0x216F}, {0x24B6, 0x24CF}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
constexpr Range kOtherLower[] = {
    {0xAA, 0xAA},       {0xBA, 0xBA},       {0x2B0, 0x2B8},     {0x2C0, 0x2C1},    {0x2E0, 0x2E4},
    {0x345, 0x345},     {0x37A, 0x37A},     {0x1D2C, 0x1D6A},   {0x1D78, 0x1D78},  {0x1D9B, 0x1DBF},
    {0x2071, 0x2071},   {0x207F, 0x207F},   {0x2090, 0x209C},   {0x2170, 0x217F},  {0x24D0, 0x24E9},
    {0x2C7C, 0x2C7D},   {0xA69C, 0xA69D},   {0xA770, 0xA770},   {0xA7F8, 0xA7F9},  {0xAB5C, 0xAB5F},
    {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA}};

struct SpecialCase {
  char32_t code_point;
  const char32_t* upper;
  const char32_t* title;
};

// Letters whose upper or title case is longer than one code point (Unicode's SpecialCasing);
// utf8proc maps one to one.
constexpr SpecialCase kSpecialCases[] = {
    {0x00DF, U"\U00000053\U00000053", U"\U00000053\U00000073"},
    {0x0149, U"\U000002bc\U0000004e", U"\U000002bc\U0000004e"},
    {0x01F0, U"\U0000004a\U0000030c", U"\U0000004a\U0000030c"},
    {0x0390, U"\U00000399\U00000308\U00000301", U"\U00000399\U00000308\U00000301"},
    {0x03B0, U"\U000003a5\U00000308\U00000301", U"\U000003a5\U00000308\U00000301"},
    {0x0587, U"\U00000535\U00000552", U"\U00000535\U00000582"},
    {0x1E96, U"\U00000048\U00000331", U"\U00000048\U00000331"},
    {0x1E97, U"\U00000054\U00000308", U"\U00000054\U00000308"},
    {0x1E98, U"\U00000057\U0000030a", U"\U00000057\U0000030a"},
    {0x1E99, U"\U00000059\U0000030a", U"\U00000059\U0000030a"},
    {0x1E9A, U"\U00000041\U000002be", U"\U00000041\U000002be"},
    {0x1F50, U"\U000003a5\U00000313", U"\U000003a5\U00000313"},
    {0x1F52, U"\U000003a5\U00000313\U00000300", U"\U000003a5\U00000313\U00000300"},
    {0x1F54, U"\U000003a5\U00000313\U00000301", U"\U000003a5\U00000313\U00000301"},
    {0x1F56, U"\U000003a5\U00000313\U00000342", U"\U000003a5\U00000313\U00000342"},
    {0x1F80, U"\U00001f08\U00000399", U"\U00001f88"},
    {0x1F81, U"\U00001f09\U00000399", U"\U00001f89"},
    {0x1F82, U"\U00001f0a\U00000399", U"\U00001f8a"},
    {0x1F83, U"\U00001f0b\U00000399", U"\U00001f8b"},
    {0x1F84, U"\U00001f0c\U00000399", U"\U00001f8c"},
    {0x1F85, U"\U00001f0d\U00000399", U"\U00001f8d"},
    {0x1F86, U"\U00001f0e\U00000399", U"\U00001f8e"},
    {0x1F87, U"\U00001f0f\U00000399", U"\U00001f8f"},
    {0x1F88, U"\U00001f08\U00000399", U"\U00001f88"},
    {0x1F89, U"\U00001f09\U00000399", U"\U00001f89"},
    {0x1F8A, U"\U00001f0a\U00000399", U"\U00001f8a"},
    {0x1F8B, U"\U00001f0b\U00000399", U"\U00001f8b"},
    {0x1F8C, U"\U00001f0c\U00000399", U"\U00001f8c"},
    {0x1F8D, U"\U00001f0d\U00000399", U"\U00001f8d"},
    {0x1F8E, U"\U00001f0e\U00000399", U"\U00001f8e"},
    {0x1F8F, U"\U00001f0f\U00000399", U"\U00001f8f"},
    {0x1F90, U"\U00001f28\U00000399", U"\U00001f98"},
    {0x1F91, U"\U00001f29\U00000399", U"\U00001f99"},
    {0x1F92, U"\U00001f2a\U00000399", U"\U00001f9a"},
    {0x1F93, U"\U00001f2b\U00000399", U"\U00001f9b"},
    {0x1F94, U"\U00001f2c\U00000399", U"\U00001f9c"},
    {0x1F95, U"\U00001f2d\U00000399", U"\U00001f9d"},
    {0x1F96, U"\U00001f2e\U00000399", U"\U00001f9e"},
    {0x1F97, U"\U00001f2f\U00000399", U"\U00001f9f"},
    {0x1F98, U"\U00001f28\U00000399", U"\U00001f98"},
    {0x1F99, U"\U00001f29\U00000399", U"\U00001f99"},
    {0x1F9A, U"\U00001f2a\U00000399", U"\U00001f9a"},
    {0x1F9B, U"\U00001f2b\U00000399", U"\U00001f9b"},
    {0x1F9C, U"\U00001f2c\U00000399", U"\U00001f9c"},
    {0x1F9D, U"\U00001f2d\U00000399", U"\U00001f9d"},
    {0x1F9E, U"\U00001f2e\U00000399", U"\U00001f9e"},
    {0x1F9F, U"\U00001f2f\U00000399", U"\U00001f9f"},
    {0x1FA0, U"\U00001f68\U00000399", U"\U00001fa8"},
    {0x1FA1, U"\U00001f69\U00000399", U"\U00001fa9"},
    {0x1FA2, U"\U00001f6a\U00000399", U"\U00001faa"},
    {0x1FA3, U"\U00001f6b\U00000399", U"\U00001fab"},
    {0x1FA4, U"\U00001f6c\U00000399", U"\U00001fac"},
    {0x1FA5, U"\U00001f6d\U00000399", U"\U00001fad"},
    {0x1FA6, U"\U00001f6e\U00000399", U"\U00001fae"},
    {0x1FA7, U"\U00001f6f\U00000399", U"\U00001faf"},
    {0x1FA8, U"\U00001f68\U00000399", U"\U00001fa8"},
    {0x1FA9, U"\U00001f69\U00000399", U"\U00001fa9"},
    {0x1FAA, U"\U00001f6a\U00000399", U"\U00001faa"},
    {0x1FAB, U"\U00001f6b\U00000399", U"\U00001fab"},
    {0x1FAC, U"\U00001f6c\U00000399", U"\U00001fac"},
    {0x1FAD, U"\U00001f6d\U00000399", U"\U00001fad"},
    {0x1FAE, U"\U00001f6e\U00000399", U"\U00001fae"},
    {0x1FAF, U"\U00001f6f\U00000399", U"\U00001faf"},
    {0x1FB2, U"\U00001fba\U00000399", U"\U00001fba\U00000345"},
    {0x1FB3, U"\U00000391\U00000399", U"\U00001fbc"},
    {0x1FB4, U"\U00000386\U00000399", U"\U00000386\U00000345"},
    {0x1FB6, U"\U00000391\U00000342", U"\U00000391\U00000342"},
    {0x1FB7, U"\U00000391\U00000342\U00000399", U"\U00000391\U00000342\U00000345"},
    {0x1FBC, U"\U00000391\U00000399", U"\U00001fbc"},
    {0x1FC2, U"\U00001fca\U00000399", U"\U00001fca\U00000345"},
    {0x1FC3, U"\U00000397\U00000399", U"\U00001fcc"},
    {0x1FC4, U"\U00000389\U00000399", U"\U00000389\U00000345"},
    {0x1FC6, U"\U00000397\U00000342", U"\U00000397\U00000342"},
    {0x1FC7, U"\U00000397\U00000342\U00000399", U"\U00000397\U00000342\U00000345"},
    {0x1FCC, U"\U00000397\U00000399", U"\U00001fcc"},
    {0x1FD2, U"\U00000399\U00000308\U00000300", U"\U00000399\U00000308\U00000300"},
    {0x1FD3, U"\U00000399\U00000308\U00000301", U"\U00000399\U00000308\U00000301"},
    {0x1FD6, U"\U00000399\U00000342", U"\U00000399\U00000342"},
    {0x1FD7, U"\U00000399\U00000308\U00000342", U"\U00000399\U00000308\U00000342"},
    {0x1FE2, U"\U000003a5\U00000308\U00000300", U"\U000003a5\U00000308\U00000300"},
    {0x1FE3, U"\U000003a5\U00000308\U00000301", U"\U000003a5\U00000308\U00000301"},
    {0x1FE4, U"\U000003a1\U00000313", U"\U000003a1\U00000313"},
    {0x1FE6, U"\U000003a5\U00000342", U"\U000003a5\U00000342"},
    {0x1FE7, U"\U000003a5\U00000308\U00000342", U"\U000003a5\U00000308\U00000342"},
    {0x1FF2, U"\U00001ffa\U00000399", U"\U00001ffa\U00000345"},
    {0x1FF3, U"\U000003a9\U00000399", U"\U00001ffc"},
    {0x1FF4, U"\U0000038f\U00000399", U"\U0000038f\U00000345"},
    {0x1FF6, U"\U000003a9\U00000342", U"\U000003a9\U00000342"},
    {0x1FF7, U"\U000003a9\U00000342\U00000399", U"\U000003a9\U00000342\U00000345"},
    {0x1FFC, U"\U000003a9\U00000399", U"\U00001ffc"},
    {0xFB00, U"\U00000046\U00000046", U"\U00000046\U00000066"},
    {0xFB01, U"\U00000046\U00000049", U"\U00000046\U00000069"},
    {0xFB02, U"\U00000046\U0000004c", U"\U00000046\U0000006c"},
    {0xFB03, U"\U00000046\U00000046\U00000049", U"\U00000046\U00000066\U00000069"},
    {0xFB04, U"\U00000046\U00000046\U0000004c", U"\U00000046\U00000066\U0000006c"},
    {0xFB05, U"\U00000053\U00000054", U"\U00000053\U00000074"},
    {0xFB06, U"\U00000053\U00000054", U"\U00000053\U00000074"},
    {0xFB13, U"\U00000544\U00000546", U"\U00000544\U00000576"},
    {0xFB14, U"\U00000544\U00000535", U"\U00000544\U00000565"},
    {0xFB15, U"\U00000544\U0000053b", U"\U00000544\U0000056b"},
    {0xFB16, U"\U0000054e\U00000546", U"\U0000054e\U00000576"},
    {0xFB17, U"\U00000544\U0000053d", U"\U00000544\U0000056d"},
};

const SpecialCase* FindSpecialCase(char32_t c) {
  if (c < 0xDF) return nullptr;
  const SpecialCase* it =
      std::lower_bound(std::begin(kSpecialCases), std::end(kSpecialCases), c,
                       [](const SpecialCase& s, char32_t v) { return s.code_point < v; });
  return it != std::end(kSpecialCases) && it->code_point == c ? it : nullptr;
}

utf8proc_category_t Category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

void AppendUpper(std::string* out, char32_t c) {
  if (const SpecialCase* special = FindSpecialCase(c)) {
    *out += Encode(special->upper);
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_toupper(static_cast<int32_t>(c))), *out);
  }
}

void AppendTitle(std::string* out, char32_t c) {
  if (const SpecialCase* special = FindSpecialCase(c)) {
    *out += Encode(special->title);
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_totitle(static_cast<int32_t>(c))), *out);
  }
}

bool IsCaseIgnorable(char32_t c) {
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return c == '\'' || c == '.' || c == ':' || c == 0xB7 || c == 0x2018 || c == 0x2019;
  }
}

// A capital sigma is written as final sigma after a cased letter, unless another follows.
bool IsFinalSigma(std::u32string_view text, size_t position) {
  size_t before = position;
  while (before > 0 && IsCaseIgnorable(text[before - 1])) --before;
  if (before == 0 || !IsCased(text[before - 1])) return false;
  size_t after = position + 1;
  while (after < text.size() && IsCaseIgnorable(text[after])) ++after;
  return after == text.size() || !IsCased(text[after]);
}

void AppendLower(std::string* out, std::u32string_view text, size_t position) {
  const char32_t c = text[position];
  if (c == 0x130) {
    *out += "i\u0307";
  } else if (c == 0x3A3) {
    AppendUtf8(IsFinalSigma(text, position) ? 0x3C2 : 0x3C3, *out);
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<int32_t>(c))), *out);
  }
}

}  // namespace

// Stays within `text` whatever its bytes are: not every caller has checked them.
char32_t NextCodePoint(std::string_view text, size_t* position) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const size_t i = *position;
  const unsigned lead = byte(i);
  if (lead < 0x80) {
    *position = i + 1;
    return lead;
  }
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  char32_t c = lead & (0xFFu >> (length + 1));
  for (size_t k = 1; k < length; ++k) c = (c << 6) | (byte(i + k) & 0x3F);
  *position = std::min(i + length, text.size());
  return c;
}

std::u32string Decode(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) out.push_back(NextCodePoint(text, &i));
  return out;
}

std::string Encode(std::u32string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char32_t c : text) AppendUtf8(c, out);
  return out;
}

int64_t CountCodePoints(std::string_view text) {
  return static_cast<int64_t>(CountCharacters(text));
}

bool IsSpace(char32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsLineBreak(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool IsAlpha(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool IsDecimal(char32_t c) {
  return Category(c) == UTF8PROC_CATEGORY_ND;
}
bool IsDigit(char32_t c) {
  return IsDecimal(c) || InRanges(kOtherDigits, c);
}

bool IsNumeric(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

bool IsUpper(char32_t c) {
  return Category(c) == UTF8PROC_CATEGORY_LU || InRanges(kOtherUpper, c);
}
bool IsLower(char32_t c) {
  return Category(c) == UTF8PROC_CATEGORY_LL || InRanges(kOtherLower, c);
}
bool IsTitle(char32_t c) {
  return Category(c) == UTF8PROC_CATEGORY_LT;
}

bool IsPrintable(char32_t c) {
  if (c == ' ') return true;
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool IsIdentifierStart(char32_t c) {
  if (c < 0x80) return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return IsAlpha(c) || Category(c) == UTF8PROC_CATEGORY_NL;
}

bool IsIdentifierPart(char32_t c) {
  if (c < 0x80) return IsIdentifierStart(c) || (c >= '0' && c <= '9');
  const utf8proc_category_t category = Category(c);
  return IsIdentifierStart(c) || category == UTF8PROC_CATEGORY_MN ||
         category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ND ||
         category == UTF8PROC_CATEGORY_PC;
}

std::string ToUpper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) AppendUpper(&out, NextCodePoint(text, &i));
  return out;
}

std::string ToLower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  const std::u32string points = Decode(text);
  for (size_t i = 0; i < points.size(); ++i) AppendLower(&out, points, i);
  return out;
}

std::string ToTitle(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  const std::u32string points = Decode(text);
  bool after_cased = false;
  for (size_t i = 0; i < points.size(); ++i) {
    if (after_cased) {
      AppendLower(&out, points, i);
    } else {
      AppendTitle(&out, points[i]);
    }
    after_cased = IsCased(points[i]);
  }
  return out;
}

std::string Capitalize(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  const std::u32string points = Decode(text);
  for (size_t i = 0; i < points.size(); ++i) {
    if (i == 0) {
      AppendTitle(&out, points[i]);
    } else {
      AppendLower(&out, points, i);
    }
  }
  return out;
}

bool IsCasedText(std::string_view text, bool upper) {
  bool any = false;
  for (size_t i = 0; i < text.size();) {
    const char32_t c = NextCodePoint(text, &i);
    if (IsTitle(c) || (upper ? IsLower(c) : IsUpper(c))) return false;
    any |= IsCased(c);
  }
  return any;
}

namespace {

template <typename Drop>
std::string_view StripWhere(std::string_view text, bool left, bool right, const Drop& drop) {
  while (left && !text.empty()) {
    size_t next = 0;
    if (!drop(NextCodePoint(text, &next))) break;
    text.remove_prefix(next);
  }
  while (right && !text.empty()) {
    size_t start = text.size() - 1;
    while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
    size_t next = start;
    if (!drop(NextCodePoint(text, &next))) break;
    text = text.substr(0, start);
  }
  return text;
}

}  // namespace

std::string_view StripSpace(std::string_view text, bool left, bool right) {
  return StripWhere(text, left, right, IsSpace);
}

std::string_view StripChars(std::string_view text, std::string_view chars, bool left, bool right) {
  std::u32string set = Decode(chars);
  std::sort(set.begin(), set.end());
  return StripWhere(text, left, right,
                    [&](char32_t c) { return std::binary_search(set.begin(), set.end(), c); });
}

std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t start = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t at = i;
    const char32_t c = NextCodePoint(text, &i);
    if (!IsLineBreak(c)) continue;
    if (c == '\r' && i < text.size() && text[i] == '\n') ++i;
    lines.push_back(text.substr(start, (keep_ends ? i : at) - start));
    start = i;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

}  // namespace loopspec::jinja

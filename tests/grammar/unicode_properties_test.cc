// Unicode properties in patterns, against utf8proc's category of each code point.
#include <gtest/gtest.h>
#include <utf8proc.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"
#include "grammar/character_table.h"
#include "grammar/grammar.h"
#include "grammar/pattern.h"
#include "grammar/unicode_properties.h"

namespace loopspec::grammar {
namespace {

constexpr char32_t kLast = 0x10FFFF;

bool IsSurrogate(char32_t c) {
  return c >= 0xD800 && c <= 0xDFFF;
}

// Such as Lu.
std::string_view CategoryOf(char32_t c) {
  return utf8proc_category_string(static_cast<utf8proc_int32_t>(c));
}

std::string Utf8(char32_t c) {
  std::string text;
  AppendUtf8(c, text);
  return text;
}

// \uXXXX, or two of them.
std::string Escaped(char32_t c) {
  char text[16];
  if (c <= 0xFFFF) {
    std::snprintf(text, sizeof text, "\\u%04X", static_cast<unsigned>(c));
  } else {
    const auto rest = static_cast<unsigned>(c - 0x10000);
    std::snprintf(text, sizeof text, "\\u%04x\\u%04X", 0xD800 + (rest >> 10),
                  0xDC00 + (rest & 0x3FF));
  }
  return text;
}

// Whether the set has exactly the code points that `has` says, surrogates apart.
void ExpectSet(const std::string& name, const std::function<bool(char32_t)>& has) {
  const auto set = UnicodeProperty(name);
  ASSERT_TRUE(set.has_value()) << name;
  std::vector<bool> members(kLast + 1);
  for (const auto& [low, high] : set->ranges()) {
    std::fill(members.begin() + low, members.begin() + high + 1, true);
  }
  for (char32_t c = 0; c <= kLast; ++c) {
    const bool expected = !IsSurrogate(c) && has(c);
    if (members[c] != expected) {
      FAIL() << name << " and code point " << static_cast<uint32_t>(c) << " of category "
             << CategoryOf(c);
    }
  }
}

TEST(UnicodeProperties, CategoriesAreThoseOfEachCodePoint) {
  // Names with what the category of a member begins with.
  const std::pair<const char*, const char*> rows[] = {
      {"L", "L"},
      {"Letter", "L"},
      {"gc=L", "L"},
      {"General_Category=Letter", "L"},
      {"Lu", "Lu"},
      {"Uppercase_Letter", "Lu"},
      {"Ll", "Ll"},
      {"Lowercase_Letter", "Ll"},
      {"Lt", "Lt"},
      {"Titlecase_Letter", "Lt"},
      {"Lm", "Lm"},
      {"Modifier_Letter", "Lm"},
      {"Lo", "Lo"},
      {"Other_Letter", "Lo"},
      {"M", "M"},
      {"Combining_Mark", "M"},
      {"Mn", "Mn"},
      {"Nonspacing_Mark", "Mn"},
      {"Mc", "Mc"},
      {"Spacing_Mark", "Mc"},
      {"Me", "Me"},
      {"Enclosing_Mark", "Me"},
      {"N", "N"},
      {"Number", "N"},
      {"Nd", "Nd"},
      {"digit", "Nd"},
      {"Nl", "Nl"},
      {"Letter_Number", "Nl"},
      {"No", "No"},
      {"Other_Number", "No"},
      {"P", "P"},
      {"punct", "P"},
      {"Pc", "Pc"},
      {"Connector_Punctuation", "Pc"},
      {"Pd", "Pd"},
      {"Dash_Punctuation", "Pd"},
      {"Ps", "Ps"},
      {"Open_Punctuation", "Ps"},
      {"Pe", "Pe"},
      {"Close_Punctuation", "Pe"},
      {"Pi", "Pi"},
      {"Initial_Punctuation", "Pi"},
      {"Pf", "Pf"},
      {"Final_Punctuation", "Pf"},
      {"Po", "Po"},
      {"Other_Punctuation", "Po"},
      {"S", "S"},
      {"Symbol", "S"},
      {"Sm", "Sm"},
      {"Math_Symbol", "Sm"},
      {"Sc", "Sc"},
      {"Currency_Symbol", "Sc"},
      {"Sk", "Sk"},
      {"Modifier_Symbol", "Sk"},
      {"So", "So"},
      {"Other_Symbol", "So"},
      {"Z", "Z"},
      {"Separator", "Z"},
      {"Zs", "Zs"},
      {"Space_Separator", "Zs"},
      {"Zl", "Zl"},
      {"Zp", "Zp"},
      {"C", "C"},
      {"Other", "C"},
      {"Cc", "Cc"},
      {"cntrl", "Cc"},
      {"Cf", "Cf"},
      {"Format", "Cf"},
      {"Cs", "Cs"},
      {"Co", "Co"},
      {"Private_Use", "Co"},
      {"Cn", "Cn"},
      {"Unassigned", "Cn"},
  };
  for (const auto& [name, begin] : rows) {
    ExpectSet(name, [&](char32_t c) { return CategoryOf(c).starts_with(begin); });
  }
  ExpectSet("LC", [](char32_t c) {
    return CategoryOf(c) == "Lu" || CategoryOf(c) == "Ll" || CategoryOf(c) == "Lt";
  });
}

TEST(UnicodeProperties, OthersThatAreKnown) {
  ExpectSet("Any", [](char32_t) { return true; });
  ExpectSet("ASCII", [](char32_t c) { return c < 0x80; });
  ExpectSet("Assigned", [](char32_t c) { return CategoryOf(c) != "Cn"; });
  ExpectSet("AHex", [](char32_t c) { return c < 0x80 && std::isxdigit(static_cast<int>(c)) != 0; });
  // The same at the width of ideographs.
  ExpectSet("Hex_Digit", [](char32_t c) {
    const char32_t narrow = c >= 0xFF00 ? c - 0xFF00 + 0x20 : c;
    return narrow < 0x80 && std::isxdigit(static_cast<int>(narrow)) != 0;
  });
  // Separators, and the control characters that end lines or move on.
  ExpectSet("White_Space", [](char32_t c) {
    return (c >= 9 && c <= 13) || c == 0x85 || CategoryOf(c).starts_with("Z");
  });
  ExpectSet("NChar",
            [](char32_t c) { return (c & 0xFFFE) == 0xFFFE || (c >= 0xFDD0 && c <= 0xFDEF); });
  for (const char* name : {"", "l", "letter", "LETTER", "gc=", "gc=Any", "gc", "General_Category",
                           "Script=Greek", "Greek", "sc=Grek", "Alphabetic", "IsL", "^L", " L"}) {
    EXPECT_FALSE(UnicodeProperty(name).has_value()) << name;
  }
}

// Follows each code point, written as itself and as an escape.
void ExpectPattern(const std::string& pattern, const std::function<bool(char32_t)>& has) {
  Regular regular;
  const Node utf8 = ParsePattern(regular, pattern, Writing::kUtf8, Anchoring::kWhole);
  const Node json = ParsePattern(regular, pattern, Writing::kJsonString, Anchoring::kWhole);
  for (char32_t c = 0; c <= kLast; ++c) {
    const bool expected = !IsSurrogate(c) && has(c);
    const bool plain = c >= 0x20 && c != '"' && c != '\\';
    const std::string text = Utf8(c);
    if ((!IsSurrogate(c) && (regular.Matches(utf8, text) != expected ||
                             regular.Matches(json, text) != (expected && plain))) ||
        regular.Matches(json, Escaped(c)) != expected) {
      FAIL() << pattern << " and code point " << static_cast<uint32_t>(c);
    }
  }
  for (const ShortEscape& escape : kShortEscapes) {
    EXPECT_EQ(regular.Matches(json, std::string{'\\', escape.letter}), has(escape.value))
        << pattern;
  }
}

TEST(UnicodeProperties, PatternsTakeEachCodePointInEachWriting) {
  const auto letter = [](char32_t c) { return CategoryOf(c).starts_with("L"); };
  ExpectPattern("\\p{L}", letter);
  ExpectPattern("\\P{L}", [&](char32_t c) { return !letter(c); });
  ExpectPattern("[^\\p{L}\\p{N}_]", [&](char32_t c) {
    return !letter(c) && !CategoryOf(c).starts_with("N") && c != '_';
  });
  ExpectPattern("[\\P{Lu}x-z]|Q", [](char32_t c) { return CategoryOf(c) != "Lu" || c == 'Q'; });
  ExpectPattern("[\\p{Cc}\\p{Zs}\\p{Sm}\\\\\"/]", [](char32_t c) {
    const auto category = CategoryOf(c);
    return category == "Cc" || category == "Zs" || category == "Sm" || c == '\\' || c == '"' ||
           c == '/';
  });
}

TEST(UnicodeProperties, AutomataAreSmallAndMadeOnce) {
  const auto letters = *UnicodeProperty("L");
  EXPECT_LT(CharacterTable(letters, Writing::kUtf8).states.size(), 400u);
  EXPECT_LT(CharacterTable(letters, Writing::kJsonString).states.size(), 1000u);
  Regular regular;
  const Node first = ParsePattern(regular, "\\p{L}", Writing::kJsonString, Anchoring::kWhole);
  const size_t before = regular.memory();
  EXPECT_EQ(ParsePattern(regular, "[\\p{L}]", Writing::kJsonString, Anchoring::kWhole), first);
  EXPECT_EQ(regular.memory(), before);
}

TEST(UnicodeProperties, InSchemasWithLengths) {
  const auto grammar = Grammar::FromSchema(
      R"({"type": "string", "pattern": "^\\p{L}[\\p{L}\\p{N}_ -]*$", "maxLength": 3})", nullptr);
  const auto valid = [&](const std::string& text) {
    State state = grammar->Start();
    return state.Advance(text) && state.MayEnd();
  };
  EXPECT_TRUE(valid("\"\xC3\xA9t1\""));
  EXPECT_TRUE(valid("\"\\u00e9\xE4\xB8\xAD\xF0\x9D\x9F\x98\""));  // the last a digit
  EXPECT_FALSE(valid("\"1a\""));
  EXPECT_FALSE(valid("\"abcd\""));
  EXPECT_FALSE(valid("\"a!\""));
  EXPECT_FALSE(valid("\"\\u0031\""));
}

}  // namespace
}  // namespace loopspec::grammar

#include "grammar/unicode_properties.h"

#include <utf8proc.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace loopspec::grammar {
namespace {

// One bit for each category.
template <typename... Categories>
constexpr uint32_t Of(Categories... categories) {
  return ((uint32_t{1} << categories) | ...);
}

constexpr uint32_t kCased = Of(UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LL, UTF8PROC_CATEGORY_LT);
constexpr uint32_t kLetters = kCased | Of(UTF8PROC_CATEGORY_LM, UTF8PROC_CATEGORY_LO);
constexpr uint32_t kMarks = Of(UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_MC, UTF8PROC_CATEGORY_ME);
constexpr uint32_t kNumbers = Of(UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NL, UTF8PROC_CATEGORY_NO);
constexpr uint32_t kPunctuation =
    Of(UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PD, UTF8PROC_CATEGORY_PS, UTF8PROC_CATEGORY_PE,
       UTF8PROC_CATEGORY_PI, UTF8PROC_CATEGORY_PF, UTF8PROC_CATEGORY_PO);
constexpr uint32_t kSymbols =
    Of(UTF8PROC_CATEGORY_SM, UTF8PROC_CATEGORY_SC, UTF8PROC_CATEGORY_SK, UTF8PROC_CATEGORY_SO);
constexpr uint32_t kSeparators =
    Of(UTF8PROC_CATEGORY_ZS, UTF8PROC_CATEGORY_ZL, UTF8PROC_CATEGORY_ZP);
constexpr uint32_t kUnassigned = Of(UTF8PROC_CATEGORY_CN);
constexpr uint32_t kOther = kUnassigned | Of(UTF8PROC_CATEGORY_CC, UTF8PROC_CATEGORY_CF,
                                             UTF8PROC_CATEGORY_CS, UTF8PROC_CATEGORY_CO);

// The values of General_Category with their names.
struct Category {
  std::string_view name, long_name, other_name;
  uint32_t members;
};
constexpr Category kCategories[] = {
    {"L", "Letter", "", kLetters},
    {"LC", "Cased_Letter", "", kCased},
    {"Lu", "Uppercase_Letter", "", Of(UTF8PROC_CATEGORY_LU)},
    {"Ll", "Lowercase_Letter", "", Of(UTF8PROC_CATEGORY_LL)},
    {"Lt", "Titlecase_Letter", "", Of(UTF8PROC_CATEGORY_LT)},
    {"Lm", "Modifier_Letter", "", Of(UTF8PROC_CATEGORY_LM)},
    {"Lo", "Other_Letter", "", Of(UTF8PROC_CATEGORY_LO)},
    {"M", "Mark", "Combining_Mark", kMarks},
    {"Mn", "Nonspacing_Mark", "", Of(UTF8PROC_CATEGORY_MN)},
    {"Mc", "Spacing_Mark", "", Of(UTF8PROC_CATEGORY_MC)},
    {"Me", "Enclosing_Mark", "", Of(UTF8PROC_CATEGORY_ME)},
    {"N", "Number", "", kNumbers},
    {"Nd", "Decimal_Number", "digit", Of(UTF8PROC_CATEGORY_ND)},
    {"Nl", "Letter_Number", "", Of(UTF8PROC_CATEGORY_NL)},
    {"No", "Other_Number", "", Of(UTF8PROC_CATEGORY_NO)},
    {"P", "Punctuation", "punct", kPunctuation},
    {"Pc", "Connector_Punctuation", "", Of(UTF8PROC_CATEGORY_PC)},
    {"Pd", "Dash_Punctuation", "", Of(UTF8PROC_CATEGORY_PD)},
    {"Ps", "Open_Punctuation", "", Of(UTF8PROC_CATEGORY_PS)},
    {"Pe", "Close_Punctuation", "", Of(UTF8PROC_CATEGORY_PE)},
    {"Pi", "Initial_Punctuation", "", Of(UTF8PROC_CATEGORY_PI)},
    {"Pf", "Final_Punctuation", "", Of(UTF8PROC_CATEGORY_PF)},
    {"Po", "Other_Punctuation", "", Of(UTF8PROC_CATEGORY_PO)},
    {"S", "Symbol", "", kSymbols},
    {"Sm", "Math_Symbol", "", Of(UTF8PROC_CATEGORY_SM)},
    {"Sc", "Currency_Symbol", "", Of(UTF8PROC_CATEGORY_SC)},
    {"Sk", "Modifier_Symbol", "", Of(UTF8PROC_CATEGORY_SK)},
    {"So", "Other_Symbol", "", Of(UTF8PROC_CATEGORY_SO)},
    {"Z", "Separator", "", kSeparators},
    {"Zs", "Space_Separator", "", Of(UTF8PROC_CATEGORY_ZS)},
    {"Zl", "Line_Separator", "", Of(UTF8PROC_CATEGORY_ZL)},
    {"Zp", "Paragraph_Separator", "", Of(UTF8PROC_CATEGORY_ZP)},
    {"C", "Other", "", kOther},
    {"Cc", "Control", "cntrl", Of(UTF8PROC_CATEGORY_CC)},
    {"Cf", "Format", "", Of(UTF8PROC_CATEGORY_CF)},
    {"Cs", "Surrogate", "", Of(UTF8PROC_CATEGORY_CS)},  // no character: a text has none
    {"Co", "Private_Use", "", Of(UTF8PROC_CATEGORY_CO)},
    {"Cn", "Unassigned", "", kUnassigned},
};

// Neighbours of one category.
struct Run {
  char32_t low, high;
  uint32_t category;  // as a bit
};

const std::vector<Run>& Runs() {
  static const std::vector<Run> runs = [] {
    std::vector<Run> made;
    for (char32_t c = 0; c <= kLastCodePoint; ++c) {
      const uint32_t category = Of(utf8proc_category(static_cast<utf8proc_int32_t>(c)));
      if (made.empty() || made.back().category != category) made.push_back({c, c, category});
      made.back().high = c;
    }
    return made;
  }();
  return runs;
}

CharacterSet InCategories(uint32_t members) {
  std::vector<std::pair<char32_t, char32_t>> ranges;
  for (const Run& run : Runs()) {
    if ((run.category & members) != 0) ranges.emplace_back(run.low, run.high);
  }
  return CharacterSet(std::move(ranges));
}

std::optional<CharacterSet> GeneralCategory(std::string_view name) {
  for (const Category& category : kCategories) {
    if (name == category.name || name == category.long_name ||
        (!category.other_name.empty() && name == category.other_name)) {
      return InCategories(category.members);
    }
  }
  return std::nullopt;
}

CharacterSet Noncharacters() {
  CharacterSet set{{0xFDD0, 0xFDEF}};
  for (char32_t plane = 0; plane <= 16; ++plane) {
    set.Add(plane * 0x10000 + 0xFFFE, plane * 0x10000 + 0xFFFF);
  }
  return set;
}

}  // namespace

std::optional<CharacterSet> UnicodeProperty(std::string_view name) {
  for (const std::string_view property : {"General_Category=", "gc="}) {
    if (name.starts_with(property)) return GeneralCategory(name.substr(property.size()));
  }
  if (name == "Any") return CharacterSet::All();
  if (name == "ASCII") return CharacterSet{{0, 0x7F}};
  if (name == "Assigned") return InCategories(kUnassigned).Complement();
  if (name == "ASCII_Hex_Digit" || name == "AHex") {
    return CharacterSet{{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
  }
  if (name == "Hex_Digit" || name == "Hex") {
    return CharacterSet{{'0', '9'},       {'A', 'F'},       {'a', 'f'},
                        {0xFF10, 0xFF19}, {0xFF21, 0xFF26}, {0xFF41, 0xFF46}};
  }
  if (name == "White_Space" || name == "space") {
    return CharacterSet{{0x09, 0x0D},     {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
                        {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                        {0x205F, 0x205F}, {0x3000, 0x3000}};
  }
  if (name == "Noncharacter_Code_Point" || name == "NChar") return Noncharacters();
  return GeneralCategory(name);
}

}  // namespace loopspec::grammar

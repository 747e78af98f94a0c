#include <array>
#include <utility>

#include "experiments/scoring/math_expression.h"
#include "experiments/scoring/regex.h"
#include "experiments/scoring/strings.h"

namespace loopspec::measure {
namespace {

// Spellings that mean the same, in the order in which they are replaced.
constexpr std::array<std::pair<std::string_view, std::string_view>, 48> kSpellings = {{
    {"\n", " "},
    {"\t", " "},
    {"\\left", ""},
    {"\\right", ""},
    {"\\bigl", ""},
    {"\\bigr", ""},
    {"\\Bigl", ""},
    {"\\Bigr", ""},
    {"\\big", ""},
    {"\\Big", ""},
    {"\\displaystyle", ""},
    {"\\!", ""},
    {"\\,", " "},
    {"\\;", " "},
    {"\\:", " "},
    {"\\quad", " "},
    {"\\qquad", " "},
    {"~", " "},
    {"\\$", ""},
    {"$", ""},
    {"\\dfrac", "\\frac"},
    {"\\tfrac", "\\frac"},
    {"\\cfrac", "\\frac"},
    {"\\dbinom", "\\binom"},
    {"\\mbox", "\\text"},
    {"\\textbf", "\\text"},
    {"\\textit", "\\text"},
    {"\\textrm", "\\text"},
    {"\\textnormal", "\\text"},
    {"\\mathrm", "\\text"},
    {"\\mathbf", "\\text"},
    {"\\mathit", "\\text"},
    {"^\\circ", ""},
    {"^{\\circ}", ""},
    {"^\\degree", ""},
    {"\\degree", ""},
    {"\xC2\xB0", ""},
    {"\\%", "%"},
    {"{,}", ","},
    {"\\lbrace", "\\{"},
    {"\\rbrace", "\\}"},
    {"\\lbrack", "["},
    {"\\rbrack", "]"},
    {"\xE2\x88\x92", "-"},
    {"\xCF\x80", "\\pi "},
    {"\xE2\x88\x9E", "\\infty "},
    {"\\ldots", ""},
    {"\\dots", ""},
}};

// A number in front of words that are no mathematics: units, counted things.
const Regex& TrailingUnit() {
  static const Regex regex(
      R"((?<=[\d}\s])\s*(?:square|sq\.?|cubic)?\s*(?:units?|cm|mm|km|m|ft|feet|foot|in|inch(?:es)?|)"
      R"(yards?|miles?|met(?:er|re)s?|degrees?|dollars?|cents?|hours?|hrs?|minutes?|mins?|)"
      R"(seconds?|secs?|days?|weeks?|months?|years?|mph|kmph|pounds?|lbs?|kg|grams?|gallons?|)"
      R"(lit(?:er|re)s?|acres?|students?|ways|points?|digits?|edges?|coins?|apples?)(?:\^\{?[23]\}?)?\s*$)");
  return regex;
}

}  // namespace

std::string NormalizeLatex(std::string_view latex) {
  static const Regex spaced_backslash(R"((?<!\\)\\(?=\s))");
  static const Regex double_backslash(R"(\\\\(?=[a-zA-Z]))");
  static const Regex conjunction(R"(,?\s*\\text\s*\{\s*(?:and|or)\s*\}|,?\s+(?:and|or)\s+)");
  static const Regex empty_text(R"(\\text\s*\{\s*\})");
  static const Regex trailing_text(R"(\s*\\text\s*\{[^{}]*\}(?:\^\{?\d\}?)?\s*$)");
  static const Regex percent_word(
      R"(\s*(?:\\text\s*\{\s*)?\b(?:percent|percentage|pct)\b(?:\s*\})?)");
  static const Regex thousands(R"((?<![\d.])(\d{1,3})((?:,\s*\d{3})+)(?![\d]))");

  std::string text(latex);
  if (text.find("matrix") == std::string::npos && text.find("array") == std::string::npos) {
    text = double_backslash.Replace(text, [](const RegexMatch&) { return "\\"; });
  }
  for (const auto& [from, to] : kSpellings) text = ReplaceAll(text, from, to);
  text = spaced_backslash.Remove(text);
  text = conjunction.Replace(text, [](const RegexMatch&) { return ","; });
  text = percent_word.Replace(text, [](const RegexMatch&) { return "%"; });
  text = empty_text.Remove(text);
  text = std::string(Strip(text));
  while (text.ends_with('.') || text.ends_with(',')) text.pop_back();
  if (const std::string before(Strip(trailing_text.Remove(text))); !before.empty()) text = before;
  if (const std::string before(Strip(TrailingUnit().Remove(text))); !before.empty()) text = before;
  // A comma inside brackets separates; outside it may group digits by threes.
  if (text.find_first_of("([{") == std::string::npos) {
    text = thousands.Replace(text, [](const RegexMatch& match) {
      return ReplaceAll(ReplaceAll(match.groups[0], ",", ""), " ", "");
    });
  }
  return std::string(Strip(text));
}

}  // namespace loopspec::measure

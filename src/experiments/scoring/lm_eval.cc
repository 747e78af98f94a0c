#include "experiments/scoring/lm_eval.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "experiments/scoring/regex.h"
#include "experiments/scoring/strings.h"

namespace loopspec::measure {
namespace {

// The first group of a match that is not empty; a pattern with one group gives that group.
std::string FirstGroup(const RegexMatch& match) {
  if (match.groups.size() == 2) return std::string(Strip(match.groups[1]));
  for (size_t i = 1; i < match.groups.size(); ++i) {
    if (!match.groups[i].empty()) return std::string(Strip(match.groups[i]));
  }
  return std::string(kInvalidAnswer);
}

std::string IgnoreGsm8kMarks(std::string_view text) {
  static const Regex before_mark(R"((?s).*#### )");
  static const Regex last_full_stop(R"(\.$)");
  std::string result = ReplaceAll(ReplaceAll(text, ",", ""), "$", "");
  return AsciiLower(last_full_stop.Remove(before_mark.Remove(result)));
}

// `keep` is the number of the group that stays.
std::string Unwrap(const Regex& regex, std::string_view text, size_t keep) {
  return regex.Replace(text,
                       [keep](const RegexMatch& match) { return std::string(match.groups[keep]); });
}

constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kSubstitutions = {
    {{"an ", ""},
     {"a ", ""},
     {".$", "$"},
     {"\\$", ""},
     {"\\ ", ""},
     {" ", ""},
     {"mbox", "text"},
     {",\\text{and}", ","},
     {"\\text{and}", ","},
     {"\\text{m}", "\\text{}"}}};

// The order matters: "\text{}" goes after what may leave it behind.
constexpr std::array<std::string_view, 42> kRemoved = {"square",       "ways",
                                                       "integers",     "dollars",
                                                       "mph",          "inches",
                                                       "ft",           "hours",
                                                       "km",           "units",
                                                       "\\ldots",      "sue",
                                                       "points",       "feet",
                                                       "minutes",      "digits",
                                                       "cents",        "degrees",
                                                       "cm",           "gm",
                                                       "pounds",       "meters",
                                                       "meals",        "edges",
                                                       "students",     "childrentickets",
                                                       "multiples",    "\\text{s}",
                                                       "\\text{.}",    "\\text{\ns}",
                                                       "\\text{}^2",   "\\text{}^3",
                                                       "\\text{\n}",   "\\text{}",
                                                       "\\mathrm{th}", "^\\circ",
                                                       "^{\\circ}",    "\\;",
                                                       ",\\!",         "{,}",
                                                       "\"",           "\\dots"};

}  // namespace

std::string Gsm8kStrictMatch(std::string_view answer) {
  static const Regex regex(R"(The answer is (\-?[0-9\.\,]+).)");
  const auto match = regex.Search(answer);
  return match ? FirstGroup(*match) : std::string(kInvalidAnswer);
}

std::string Gsm8kFlexibleExtract(std::string_view answer) {
  static const Regex regex(R"((-?[$0-9.,]{2,})|(-?[0-9]+))");
  const auto matches = regex.FindAll(answer);
  return matches.empty() ? std::string(kInvalidAnswer) : FirstGroup(matches.back());
}

bool Gsm8kExactMatch(std::string_view extracted, std::string_view reference) {
  return IgnoreGsm8kMarks(extracted) == IgnoreGsm8kMarks(reference);
}

std::string Gsm8kReference(std::string_view worked_answer) {
  return std::string(Strip(Split(worked_answer, "####").back()));
}

std::string BbhGetAnswer(std::string_view answer) {
  static const Regex regex("(?<=the answer is )(.*)(?=.)");
  const auto match = regex.Search(answer);
  return match ? FirstGroup(*match) : std::string(kInvalidAnswer);
}

std::string MinervaUnnormalizedAnswer(std::string_view answer) {
  static const Regex regex(R"(Final Answer: The final answer is(.*?). I hope it is correct.)");
  const std::string closed = std::string(answer) + "I hope it is correct.";
  const auto match = regex.Search(closed);
  return match ? std::string(Strip(match->groups[1])) : "[invalidanswer]";
}

std::string MinervaNormalize(std::string_view answer) {
  static const Regex in_dollars(R"((.*?)(\$)(.*?)(\$)(.*))");
  static const Regex text(R"((\\text\{)(.*?)(\}))");
  static const Regex bold(R"((\\textbf\{)(.*?)(\}))");
  static const Regex overline(R"((\\overline\{)(.*?)(\}))");
  static const Regex boxed(R"((\\boxed\{)(.*)(\}))");
  static const Regex short_fraction(R"((frac)([^{])(.))");
  static const Regex short_root(R"((sqrt)([^{]))");

  std::string result(Split(answer, "=").back());
  for (const auto& [from, to] : kSubstitutions) result = ReplaceAll(result, from, to);
  for (const std::string_view removed : kRemoved) {
    result = ReplaceAll(result, removed, "");
  }
  result = in_dollars.Replace(result,
                              [](const RegexMatch& m) { return fmt::format("${}$", m.groups[3]); });
  for (const Regex* wrapper : {&text, &bold, &overline, &boxed}) {
    result = Unwrap(*wrapper, result, 2);
  }
  result = short_fraction.Replace(result, [](const RegexMatch& m) {
    return fmt::format("frac{{{}}}{{{}}}", m.groups[2], m.groups[3]);
  });
  result = short_root.Replace(
      result, [](const RegexMatch& m) { return fmt::format("sqrt{{{}}}", m.groups[2]); });
  result = ReplaceAll(result, "$", "");
  const std::string without_commas = ReplaceAll(result, ",", "");
  return IsAsciiDigits(without_commas) ? without_commas : result;
}

std::optional<std::string> LastBoxed(std::string_view solution) {
  constexpr std::string_view kSpaced = "\\boxed ";
  if (solution.find(kSpaced) != std::string_view::npos) {
    return std::string(Split(Split(solution, kSpaced).back(), "$").front());
  }
  size_t at = solution.rfind("\\boxed");
  if (at == std::string_view::npos) at = solution.rfind("\\fbox");
  if (at == std::string_view::npos) return std::nullopt;
  const size_t open = solution.find('{', at);
  int depth = 0;
  for (size_t i = open; i < solution.size(); ++i) {
    if (solution[i] == '{') ++depth;
    if (solution[i] == '}' && --depth == 0) {
      return std::string(solution.substr(open + 1, i - open - 1));
    }
  }
  return std::nullopt;
}

}  // namespace loopspec::measure

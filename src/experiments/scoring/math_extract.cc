// Where a worked solution states its answer.
#include <algorithm>
#include <array>

#include "experiments/scoring/math_answer.h"
#include "experiments/scoring/math_expression.h"
#include "experiments/scoring/regex.h"
#include "experiments/scoring/strings.h"

namespace loopspec::measure {
namespace {

// A formula or number in the text; `answer` is what it says without its wrapping.
struct Statement {
  size_t begin = 0, end = 0;
  std::string answer;
};

constexpr std::string_view kPercent = R"((\s*(?:\\?%|[Pp]ercent(?:age)?\b|[Pp]ct\b))?)";

// The content of the brace that opens at `open`; nothing when it does not close.
std::optional<std::string_view> BraceContent(std::string_view text, size_t open) {
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    if (text[i] == '{') ++depth;
    if (text[i] == '}' && --depth == 0) return text.substr(open + 1, i - open - 1);
  }
  return std::nullopt;
}

std::vector<Statement> FindBoxes(std::string_view text) {
  static const Regex command(R"(\\(?:boxed|fbox)\s*\{)");
  std::vector<Statement> boxes;
  for (const RegexMatch& match : command.FindAll(text)) {
    const auto content = BraceContent(text, match.end - 1);
    if (!content) continue;
    boxes.push_back({match.begin, match.end + content->size() + 1, std::string(Strip(*content))});
  }
  return boxes;
}

// Boxes that follow each other closely, or with "and" or a comma between, are one answer.
std::vector<Statement> JoinBoxes(std::string_view text, const std::vector<Statement>& boxes) {
  static const Regex separator(R"(\b(?:and|or)\b|,|;)");
  std::vector<Statement> joined;
  for (const Statement& box : boxes) {
    if (!joined.empty()) {
      Statement& last = joined.back();
      if (box.begin < last.end) continue;  // a box in a box
      const std::string_view between = text.substr(last.end, box.begin - last.end);
      const bool same = box.answer == last.answer;
      if (between.size() < 10 || (!same && between.size() < 70 && separator.Search(between))) {
        if (!same) last.answer += "," + box.answer;
        last.end = box.end;
        continue;
      }
    }
    joined.push_back(box);
  }
  return joined;
}

// What a formula says: the boxes in it, or all of it.
std::string FormulaAnswer(std::string_view content) {
  const auto boxes = FindBoxes(content);
  if (boxes.empty()) return std::string(Strip(content));
  std::string answer = boxes[0].answer;
  for (size_t i = 1; i < boxes.size(); ++i) {
    if (boxes[i].answer != boxes[i - 1].answer) answer += "," + boxes[i].answer;
  }
  return answer;
}

// Formulas between dollar signs or brackets, and fractions of numbers without them. Formulas with
// "and", "or" or a comma between are one statement.
std::vector<Statement> FindFormulas(std::string_view text) {
  static const Regex formula(
      std::string(R"((?:(?<!\\)\$\$((?:[^$]|\$(?!\$))+?)(?<!\\)\$\$|)"
                  R"((?<!\\)\\\[((?:[^\\]|\\(?!\]))+?)\\\]|)"
                  R"((?<![\\\d])\$((?:\\\$|[^\n$])+?)(?<!\\)\$|)"
                  R"((?<!\\)\\\(((?:[^\\\n]|\\(?!\)))+?)\\\)|)"
                  R"((-?\\frac\{-?\d+(?:[.,]\d+)?\}\{-?\d+(?:[.,]\d+)?\})))") +
      std::string(kPercent));
  static const Regex conjunction(R"(^\s*(?:,?and|,?or|,)\s*$)");
  std::vector<Statement> formulas;
  for (const RegexMatch& match : formula.FindAll(text)) {
    Statement statement{match.begin, match.end, {}};
    for (size_t group = 1; group <= 5; ++group) {
      if (!match.groups[group].empty()) statement.answer = FormulaAnswer(match.groups[group]);
    }
    if (!match.groups[6].empty()) statement.answer += "\\%";
    if (!formulas.empty()) {
      Statement& last = formulas.back();
      if (conjunction.Search(text.substr(last.end, statement.begin - last.end))) {
        last.answer += "," + statement.answer;
        last.end = statement.end;
        continue;
      }
    }
    formulas.push_back(std::move(statement));
  }
  return formulas;
}

// Numbers and arithmetic in plain text, outside formulas.
std::vector<Statement> FindNumbers(std::string_view text, const std::vector<Statement>& formulas) {
  // Bounded: otherwise every number of a long list would be tried as the start of all the rest.
  static const Regex arithmetic(
      R"((?:^|(?<=[\s=]))(?:\*\*)?(-?\(?-?\d[\d.\s+\-*/^()]{0,400}[+\-*/^()][\d.\s+\-*/^()]{1,400}\)?)(?=(?:\*\*)?(?:[.,:\s)$]|$)))");
  static const Regex number(
      std::string(
          R"((?:^|(?<=[\s=]))(?:\*\*)?[$€£¥₹]?(?<!\d)(-?[1-9]\d{0,2}(?:[ ,]\d{3})+(?:\.\d+)?|)"
          R"(-?\d+[.,]\d+|\.\d+|-?\d+))") +
      std::string(kPercent));
  std::vector<Statement> numbers;
  const auto add = [&](const RegexMatch& match, std::string answer) {
    const bool inside = std::any_of(formulas.begin(), formulas.end(), [&](const Statement& f) {
      return match.begin < f.end && f.begin < match.end;
    });
    if (!inside) numbers.push_back({match.begin, match.end, std::move(answer)});
  };
  for (const RegexMatch& match : arithmetic.FindAll(text)) {
    add(match, std::string(Strip(match.groups[1])));
  }
  static const Regex grouped(R"(^-?[1-9]\d{0,2}(?:[ ,]\d{3})+(?:\.\d+)?$)");
  for (const RegexMatch& match : number.FindAll(text)) {
    std::string digits(match.groups[1]);
    digits = grouped.Search(digits) ? ReplaceAll(ReplaceAll(digits, ",", ""), " ", "")
                                    : ReplaceAll(digits, ",", ".");
    if (!match.groups[2].empty()) digits += "\\%";
    add(match, std::move(digits));
  }
  return numbers;
}

// The last to end first; of those, the longest first.
void SortFromTheEnd(std::vector<Statement>& statements) {
  std::stable_sort(statements.begin(), statements.end(),
                   [](const Statement& a, const Statement& b) {
                     return a.end != b.end ? a.end > b.end : a.begin < b.begin;
                   });
}

// Statements that stand right after an anchor, and before `after` if that is given.
std::vector<Statement> DirectlyAfter(std::string_view text, const Regex& anchor,
                                     const std::vector<Statement>& all, const Regex* after) {
  std::vector<Statement> found;
  for (const RegexMatch& match : anchor.FindAll(text)) {
    for (const Statement& statement : all) {
      if (statement.begin != match.end) continue;
      if (after != nullptr && !after->Search(text.substr(statement.end))) continue;
      found.push_back(statement);
    }
  }
  return found;
}

// The first statement within 50 characters after each anchor; for plain numbers, the one after the
// last equals sign within 100 characters of the line comes first.
std::vector<Statement> SoonAfter(std::string_view text, const Regex& anchor,
                                 const std::vector<Statement>& formulas,
                                 const std::vector<Statement>& numbers) {
  static const Regex equals(R"(^.{0,100}=\s*)");
  std::vector<Statement> found;
  for (const RegexMatch& match : anchor.FindAll(text)) {
    const auto first_of = [&](const std::vector<Statement>& statements) {
      const Statement* first = nullptr;
      for (const Statement& s : statements) {
        if (s.begin < match.end || s.begin > match.end + 50) continue;
        if (first == nullptr || s.begin < first->begin) first = &s;
      }
      if (first != nullptr) found.push_back(*first);
    };
    first_of(formulas);
    bool after_equals = false;
    if (const auto prefix = equals.Search(text.substr(match.end))) {
      for (const Statement& number : numbers) {
        if (number.begin != match.end + prefix->end) continue;
        found.push_back(number);
        after_equals = true;
      }
    }
    if (!after_equals) first_of(numbers);
  }
  return found;
}

// The first that can be understood, else the first.
std::optional<std::string> Choose(std::vector<Statement> statements, std::string& fallback) {
  SortFromTheEnd(statements);
  for (const Statement& statement : statements) {
    if (ParseLatex(NormalizeLatex(statement.answer))) return statement.answer;
    if (fallback.empty()) fallback = statement.answer;
  }
  return std::nullopt;
}

std::vector<Statement> Together(std::vector<Statement> a, const std::vector<Statement>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

std::optional<std::string> ExtractMathAnswer(std::string_view text) {
  static const Regex final_is(R"((?i:final answer is):?\s*)");
  static const Regex hope(R"(^\.?\s?I hope)");
  static const Regex final_just_is(R"((?i:final answer)[^\n]{0,100}?\s+is:?\s*)");
  static const Regex answer_colon(R"((?i:answer):)");
  static const Regex answer(R"((?i:answer))");

  const auto formulas = FindFormulas(text);
  const auto numbers = FindNumbers(text, formulas);
  const auto all = Together(formulas, numbers);
  const std::array<std::vector<Statement>, 5> groups = {
      DirectlyAfter(text, final_is, all, &hope),
      Together(DirectlyAfter(text, final_just_is, all, nullptr), JoinBoxes(text, FindBoxes(text))),
      SoonAfter(text, answer_colon, formulas, numbers),
      SoonAfter(text, answer, formulas, numbers),
      all,
  };
  std::string fallback;
  for (const auto& group : groups) {
    if (auto found = Choose(group, fallback)) return found;
  }
  if (fallback.empty()) return std::nullopt;
  return fallback;
}

}  // namespace loopspec::measure

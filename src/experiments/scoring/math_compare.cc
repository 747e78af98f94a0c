#include <algorithm>
#include <cmath>

#include "experiments/scoring/math_answer.h"
#include "experiments/scoring/math_expression.h"
#include "experiments/scoring/strings.h"

namespace loopspec::measure {
namespace {

using Kind = Expression::Kind;

constexpr int kPoints = 4;  // where expressions with variables are compared

bool Equal(const Expression& gold, const Expression& answer);

// Values for variables: fractions that are not special to any function, fixed by name and number.
Assignment ChoosePoint(const std::set<std::string>& names, int number) {
  Assignment point;
  Int128 k = 1;
  for (const std::string& name : names) {
    point[name] = *MakeRational(7 + 13 * k + 17 * number, 11 + 6 * number);
    ++k;
  }
  return point;
}

bool Close(const Complex& a, const Complex& b) {
  if (std::isinf(a.real()) || std::isinf(b.real())) return a.real() == b.real();
  const long double size = std::max({std::abs(a), std::abs(b), 1e-3L});
  return std::abs(a - b) <= 1e-14L * size;
}

// The argument of a percentage, else the expression itself.
const Expression& WithoutPercent(const Expression& e) {
  return e.kind == Kind::kPercent ? e.arguments[0] : e;
}

bool IsSignedNumber(const Expression& e) {
  return e.kind == Kind::kNumber ||
         (e.kind == Kind::kProduct && e.arguments.size() == 2 &&
          e.arguments[0].kind == Kind::kNumber && e.arguments[1].kind == Kind::kNumber);
}

bool IsDecimal(const Expression& e) {
  const Expression& inner = WithoutPercent(e);
  if (inner.kind == Kind::kNumber) return inner.decimal;
  return IsSignedNumber(inner) && inner.arguments[1].decimal;
}

// Decimals are compared to six places, since they may be rounded.
bool EqualRounded(long double a, long double b) {
  return std::nearbyint(a * 1e6L) == std::nearbyint(b * 1e6L);
}

// One value against another at one point; nothing where one of them is undefined.
std::optional<bool> EqualAt(const Expression& a, const Expression& b, const Assignment& point) {
  const auto exact_a = EvaluateExactly(a, point), exact_b = EvaluateExactly(b, point);
  if (exact_a && exact_b) return *exact_a == *exact_b;
  const auto x = Evaluate(a, point), y = Evaluate(b, point);
  if (!x || !y) return false;
  if (std::isnan(std::abs(*x)) || std::isnan(std::abs(*y))) return std::nullopt;
  return Close(*x, *y);
}

bool EqualValues(const Expression& gold, const Expression& answer) {
  std::set<std::string> names;
  CollectSymbols(gold, names);
  CollectSymbols(answer, names);
  if (names.empty() && (IsDecimal(gold) || IsDecimal(answer))) {
    const auto a = Evaluate(gold, {}), b = Evaluate(answer, {});
    return a && b && EqualRounded(a->real(), b->real()) && EqualRounded(a->imag(), b->imag());
  }
  if (gold.kind == Kind::kPercent || answer.kind == Kind::kPercent) {
    // 9 and 9 % pass for each other, since questions often ask "what per cent".
    const auto a = EvaluateExactly(WithoutPercent(gold), {});
    const auto b = EvaluateExactly(WithoutPercent(answer), {});
    if (a && b && a->IsInteger() && b->IsInteger()) return *a == *b;
  }
  return HaveEqualValues(gold, answer);
}

// Words as they are spelled: of \text{...}, or of letters that stand side by side.
std::optional<std::string> Spelling(const Expression& e) {
  if (e.kind == Kind::kText) {
    // A choice such as (C) is its letter.
    const bool choice = e.name.size() == 3 && e.name.front() == '(' && e.name.back() == ')';
    return AsciiLower(choice ? e.name.substr(1, 1) : std::string(Strip(e.name)));
  }
  if (e.kind == Kind::kSymbol) return e.name.size() == 1 ? AsciiLower(e.name) : e.name;
  if (e.kind != Kind::kProduct) return std::nullopt;
  std::string word;
  for (const Expression& argument : e.arguments) {
    if (argument.kind != Kind::kSymbol && argument.kind != Kind::kText) return std::nullopt;
    word += AsciiLower(argument.name);
  }
  return word;
}

bool IsCollection(const Expression& e) {
  return e.kind == Kind::kList || e.kind == Kind::kSet || e.kind == Kind::kTuple;
}

// Every "a pm b" below as two expressions, all upper signs and all lower signs.
Expression ChooseSign(Expression e, bool upper) {
  for (Expression& argument : e.arguments) argument = ChooseSign(std::move(argument), upper);
  if (e.kind != Kind::kPlusMinus) return e;
  const bool plus = (e.name == "+") == upper;
  Expression minus_one;
  minus_one.value = Rational{-1, 1};
  minus_one.number = -1;
  Expression term = e.arguments[1];
  if (!plus) {
    Expression product;
    product.kind = Kind::kProduct;
    product.arguments = {minus_one, std::move(term)};
    term = std::move(product);
  }
  Expression sum;
  sum.kind = Kind::kSum;
  sum.arguments = {std::move(e.arguments[0]), std::move(term)};
  return sum;
}

bool HasPlusMinus(const Expression& e) {
  return e.kind == Kind::kPlusMinus ||
         std::any_of(e.arguments.begin(), e.arguments.end(), HasPlusMinus);
}

// Lists and sets with both signs of every plus-minus as elements of their own.
Expression Expand(const Expression& e) {
  if (e.kind == Kind::kList || e.kind == Kind::kSet) {
    Expression result = e;
    result.arguments.clear();
    for (const Expression& argument : e.arguments) {
      if (HasPlusMinus(argument)) {
        result.arguments.push_back(ChooseSign(argument, true));
        result.arguments.push_back(ChooseSign(argument, false));
      } else {
        result.arguments.push_back(argument);
      }
    }
    return result;
  }
  if (!HasPlusMinus(e) || e.kind == Kind::kRelation) return e;
  Expression list;
  list.kind = Kind::kSet;
  list.arguments = {ChooseSign(e, true), ChooseSign(e, false)};
  return list;
}

bool EqualInOrder(const std::vector<Expression>& gold, const std::vector<Expression>& answer) {
  return std::equal(gold.begin(), gold.end(), answer.begin(), answer.end(), Equal);
}

// Each element of one side has a partner of its own on the other.
bool EqualInAnyOrder(const std::vector<Expression>& gold, const std::vector<Expression>& answer) {
  if (gold.size() != answer.size()) return false;
  std::vector<bool> used(answer.size(), false);
  for (const Expression& element : gold) {
    bool found = false;
    for (size_t i = 0; i < answer.size() && !found; ++i) {
      if (used[i] || !Equal(element, answer[i])) continue;
      used[i] = found = true;
    }
    if (!found) return false;
  }
  return true;
}

bool EqualCollections(const Expression& gold, const Expression& answer) {
  const bool ordered = gold.kind == Kind::kTuple || answer.kind == Kind::kTuple;
  return ordered ? EqualInOrder(gold.arguments, answer.arguments)
                 : EqualInAnyOrder(gold.arguments, answer.arguments);
}

// An open interval looks like a pair.
Expression AsInterval(const Expression& e) {
  if (e.kind != Kind::kTuple || e.arguments.size() != 2) return e;
  Expression interval = e;
  interval.kind = Kind::kInterval;
  interval.left_open = interval.right_open = true;
  return interval;
}

bool EqualIntervals(const Expression& a, const Expression& b) {
  return a.left_open == b.left_open && a.right_open == b.right_open &&
         EqualInOrder(a.arguments, b.arguments);
}

Expression Difference(const Expression& a, const Expression& b) {
  Expression minus_one;
  minus_one.value = Rational{-1, 1};
  minus_one.number = -1;
  Expression negative;
  negative.kind = Kind::kProduct;
  negative.arguments = {minus_one, b};
  Expression sum;
  sum.kind = Kind::kSum;
  sum.arguments = {a, negative};
  return sum;
}

// f = 0 and g = 0 have the same solutions when f / g is one constant; its sign turns inequalities.
std::optional<long double> ConstantRatio(const Expression& f, const Expression& g) {
  std::set<std::string> names;
  CollectSymbols(f, names);
  std::set<std::string> others;
  CollectSymbols(g, others);
  if (names != others) return std::nullopt;
  std::optional<long double> ratio;
  for (int number = 0; number < kPoints; ++number) {
    const Assignment point = ChoosePoint(names, number);
    const auto x = Evaluate(f, point), y = Evaluate(g, point);
    if (!x || !y || std::abs(*y) < 1e-9L || std::abs(*x) < 1e-9L) return std::nullopt;
    const Complex here = *x / *y;
    if (std::abs(here.imag()) > 1e-12L * std::abs(here)) return std::nullopt;
    if (ratio && std::abs(here.real() - *ratio) > 1e-11L * std::abs(*ratio)) return std::nullopt;
    ratio = here.real();
  }
  return ratio;
}

char Turned(char relation) {
  switch (relation) {
    case '<':
      return '>';
    case '>':
      return '<';
    case 'l':
      return 'g';
    case 'g':
      return 'l';
    default:
      return relation;
  }
}

bool EqualRelations(const Expression& gold, const Expression& answer) {
  if (gold.name.size() != answer.name.size()) return false;
  if (gold.name.size() > 1) {
    // A chain: the same from one end, or from the other with every sign turned.
    if (gold.name == answer.name && EqualInOrder(gold.arguments, answer.arguments)) return true;
    Expression reversed = answer;
    std::reverse(reversed.arguments.begin(), reversed.arguments.end());
    std::reverse(reversed.name.begin(), reversed.name.end());
    for (char& relation : reversed.name) relation = Turned(relation);
    return gold.name == reversed.name && EqualInOrder(gold.arguments, reversed.arguments);
  }
  const auto ratio = ConstantRatio(Difference(gold.arguments[0], gold.arguments[1]),
                                   Difference(answer.arguments[0], answer.arguments[1]));
  if (!ratio) return false;
  return gold.name[0] == (*ratio > 0 ? answer.name[0] : Turned(answer.name[0]));
}

// Only names, side by side.
bool IsName(const Expression& e) {
  return e.kind == Kind::kSymbol || e.kind == Kind::kText ||
         (e.kind == Kind::kProduct && std::all_of(e.arguments.begin(), e.arguments.end(), IsName));
}

bool IsEquation(const Expression& e) {
  return e.kind == Kind::kRelation && e.name.find_first_not_of('=') == std::string::npos;
}
bool IsAssignment(const Expression& e) {
  return IsEquation(e) && IsName(e.arguments[0]);
}

// a = b = c as a = c.
Expression FirstAndLast(const Expression& e) {
  Expression short_form = e;
  short_form.name.assign(1, '=');
  short_form.arguments = {e.arguments.front(), e.arguments.back()};
  return short_form;
}

// a < x < b and its kin as an interval, when the middle is a name.
std::optional<Expression> AsSolutionInterval(const Expression& e) {
  if (e.kind != Kind::kRelation) return std::nullopt;
  Expression infinity;
  infinity.kind = Kind::kSymbol;
  infinity.name = "\\infty";
  Expression minus_infinity = Difference(infinity, infinity);
  minus_infinity = minus_infinity.arguments[1];
  Expression interval;
  interval.kind = Kind::kInterval;
  std::string signs = e.name;
  std::vector<Expression> sides = e.arguments;
  if (sides.size() == 2 && sides[1].kind == Kind::kSymbol && sides[0].kind != Kind::kSymbol) {
    std::swap(sides[0], sides[1]);
    signs[0] = Turned(signs[0]);
  }
  const auto less = [](char c) { return c == '<' || c == 'l'; };
  const auto more = [](char c) { return c == '>' || c == 'g'; };
  if (sides.size() == 3 && more(signs[0]) && more(signs[1])) {
    std::swap(sides[0], sides[2]);
    const char first = Turned(signs[1]);
    signs[1] = Turned(signs[0]);
    signs[0] = first;
  }
  if (sides.size() == 3 && less(signs[0]) && less(signs[1]) && sides[1].kind == Kind::kSymbol) {
    interval.arguments = {sides[0], sides[2]};
    interval.left_open = signs[0] == '<';
    interval.right_open = signs[1] == '<';
    return interval;
  }
  if (sides.size() == 2 && sides[0].kind == Kind::kSymbol && less(signs[0])) {
    interval.arguments = {minus_infinity, sides[1]};
    interval.left_open = true;
    interval.right_open = signs[0] == '<';
    return interval;
  }
  if (sides.size() == 2 && sides[0].kind == Kind::kSymbol && more(signs[0])) {
    interval.arguments = {sides[1], infinity};
    interval.left_open = signs[0] == '>';
    interval.right_open = true;
    return interval;
  }
  return std::nullopt;
}

bool IsSolutionSet(const Expression& e) {
  return e.kind == Kind::kInterval || (e.kind == Kind::kTuple && e.arguments.size() == 2);
}

bool HasBase(const Expression& e) {
  return e.kind == Kind::kFunction && e.name.starts_with("base ");
}

bool EqualAfterUnwrapping(const Expression& gold, const Expression& answer) {
  if (gold.kind == Kind::kRelation && answer.kind == Kind::kRelation) {
    return EqualRelations(gold, answer);
  }
  if (gold.kind == Kind::kRelation && IsSolutionSet(answer)) {
    const auto interval = AsSolutionInterval(gold);
    return interval && EqualIntervals(*interval, AsInterval(answer));
  }
  if (gold.kind == Kind::kRelation || answer.kind == Kind::kRelation) return false;
  if (gold.kind == Kind::kUnion || answer.kind == Kind::kUnion) {
    if (gold.kind != answer.kind) return false;
    std::vector<Expression> a, b;
    for (const Expression& part : gold.arguments) a.push_back(AsInterval(part));
    for (const Expression& part : answer.arguments) b.push_back(AsInterval(part));
    return EqualInAnyOrder(a, b);
  }
  if (gold.kind == Kind::kInterval || answer.kind == Kind::kInterval) {
    const Expression a = AsInterval(gold), b = AsInterval(answer);
    return a.kind == b.kind && EqualIntervals(a, b);
  }
  if (IsCollection(gold) && IsCollection(answer)) return EqualCollections(gold, answer);
  if (gold.kind == Kind::kMatrix || answer.kind == Kind::kMatrix) {
    return gold.kind == answer.kind && gold.columns == answer.columns &&
           EqualInOrder(gold.arguments, answer.arguments);
  }
  if (IsCollection(gold) || IsCollection(answer)) {
    // A set of one element is that element.
    const Expression& single = IsCollection(gold) ? gold : answer;
    const Expression& other = IsCollection(gold) ? answer : gold;
    return single.arguments.size() == 1 && Equal(single.arguments[0], other);
  }
  if (gold.kind == Kind::kText || answer.kind == Kind::kText) {
    const auto a = Spelling(gold), b = Spelling(answer);
    return a && b && *a == *b;
  }
  // Digits with a base: the base may be left out, but it may not be another.
  if (HasBase(gold) || HasBase(answer)) {
    if (HasBase(gold) && HasBase(answer) && gold.name != answer.name) return false;
    return Equal(HasBase(gold) ? gold.arguments[0] : gold,
                 HasBase(answer) ? answer.arguments[0] : answer);
  }
  return EqualValues(gold, answer);
}

bool Equal(const Expression& gold_given, const Expression& answer_given) {
  Expression gold = Expand(gold_given), answer = Expand(answer_given);
  if (IsAssignment(gold)) gold = FirstAndLast(gold);
  if (IsAssignment(answer)) answer = FirstAndLast(answer);
  // The gold answer decides whether the name of what was asked for counts.
  if (IsEquation(answer) && !IsEquation(gold)) {
    answer = Expand(Expression(answer.arguments.back()));
  } else if (IsAssignment(gold) && !IsEquation(answer)) {
    gold = Expand(Expression(gold.arguments.back()));
  }
  return EqualAfterUnwrapping(gold, answer);
}

// The last part of an equation chain that is not understood as a whole.
std::optional<Expression> ParseAnswer(const std::string& latex) {
  if (auto whole = ParseLatex(latex)) return whole;
  const auto parts = Split(latex, "=");
  if (parts.size() < 2) return std::nullopt;
  return ParseLatex(Strip(parts.back()));
}

}  // namespace

bool HaveEqualValues(const Expression& gold, const Expression& answer) {
  std::set<std::string> names;
  CollectSymbols(gold, names);
  CollectSymbols(answer, names);
  int compared = 0;
  for (int number = 0; number < kPoints; ++number) {
    const auto equal = EqualAt(gold, answer, ChoosePoint(names, number));
    if (!equal) continue;
    if (!*equal) return false;
    ++compared;
    if (names.empty()) return true;
  }
  return compared > 0;
}

bool MathEquivalent(std::string_view gold, std::string_view answer) {
  const std::string a = NormalizeLatex(gold), b = NormalizeLatex(answer);
  if (a.empty() || b.empty()) return false;
  if (ReplaceAll(a, " ", "") == ReplaceAll(b, " ", "")) return true;
  const auto x = ParseAnswer(a), y = ParseAnswer(b);
  return x && y && Equal(*x, *y);
}

}  // namespace loopspec::measure

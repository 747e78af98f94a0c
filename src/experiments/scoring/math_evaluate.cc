#include <cmath>
#include <numbers>

#include "experiments/scoring/math_expression.h"

namespace loopspec::measure {
namespace {

using Kind = Expression::Kind;
constexpr long double kPi = std::numbers::pi_v<long double>;

std::optional<Complex> Apply(const std::string& name, const std::vector<Complex>& a) {
  const Complex x = a[0];
  const Complex one = 1.0L;
  if (name == "sin") return std::sin(x);
  if (name == "cos") return std::cos(x);
  if (name == "tan") return std::tan(x);
  if (name == "cot") return one / std::tan(x);
  if (name == "sec") return one / std::cos(x);
  if (name == "csc") return one / std::sin(x);
  if (name == "arcsin") return std::asin(x);
  if (name == "arccos") return std::acos(x);
  if (name == "arctan") return std::atan(x);
  if (name == "sinh") return std::sinh(x);
  if (name == "cosh") return std::cosh(x);
  if (name == "tanh") return std::tanh(x);
  if (name == "ln") return std::log(x);
  if (name == "exp") return std::exp(x);
  if (name == "log") return std::log(x) / std::log(a[1]);
  if (name == "abs") return std::abs(x);
  if (name == "floor") return std::floor(x.real());
  if (name == "ceil") return std::ceil(x.real());
  if (name == "factorial") return std::tgamma(x.real() + 1.0L);
  if (name == "binom") {
    const long double n = x.real(), k = a[1].real();
    return std::tgamma(n + 1) / (std::tgamma(k + 1) * std::tgamma(n - k + 1));
  }
  return std::nullopt;
}

std::optional<Rational> ApplyExactly(const std::string& name, const std::vector<Rational>& a) {
  if (name == "abs") {
    return a[0].numerator < 0 ? MakeRational(-a[0].numerator, a[0].denominator) : a[0];
  }
  if (name == "factorial") return Factorial(a[0]);
  if (name == "binom") {
    if (!a[0].IsInteger() || !a[1].IsInteger() || a[1].numerator < 0 || a[1].numerator > 200) {
      return std::nullopt;
    }
    Rational result{1, 1};
    for (Int128 i = 0; i < a[1].numerator; ++i) {
      const auto factor = MakeRational(a[0].numerator - i, i + 1);
      const auto next = factor ? Multiply(result, *factor) : std::nullopt;
      if (!next) return std::nullopt;
      result = *next;
    }
    return result;
  }
  if (name == "floor" || name == "ceil") {
    const Int128 n = a[0].numerator, d = a[0].denominator;
    Int128 down = n / d;
    if (n % d != 0 && n < 0) --down;
    return Rational{name == "floor" || n % d == 0 ? down : down + 1, 1};
  }
  return std::nullopt;
}

template <typename Value, typename Operation>
std::optional<Value> Fold(const std::vector<Value>& values, Value start, Operation operation) {
  std::optional<Value> result = start;
  for (const Value& value : values) {
    if (result) result = operation(*result, value);
  }
  return result;
}

bool IsConstant(const std::string& name) {
  return name == "e" || name == "i" || name == "\\pi" || name == "\\infty";
}

}  // namespace

void CollectSymbols(const Expression& expression, std::set<std::string>& names) {
  if (expression.kind == Kind::kSymbol && !IsConstant(expression.name)) {
    names.insert(expression.name);
  }
  for (const Expression& argument : expression.arguments) CollectSymbols(argument, names);
}

std::optional<Rational> EvaluateExactly(const Expression& expression, const Assignment& symbols) {
  std::vector<Rational> values;
  for (const Expression& argument : expression.arguments) {
    const auto value = EvaluateExactly(argument, symbols);
    if (!value) return std::nullopt;
    values.push_back(*value);
  }
  switch (expression.kind) {
    case Kind::kNumber:
      return expression.value;
    case Kind::kSymbol: {
      const auto found = symbols.find(expression.name);
      return found == symbols.end() ? std::nullopt : std::optional(found->second);
    }
    case Kind::kSum:
      return Fold(values, Rational{0, 1}, Add);
    case Kind::kProduct:
      return Fold(values, Rational{1, 1}, Multiply);
    case Kind::kPower:
      return Power(values[0], values[1]);
    case Kind::kPercent:
      return Multiply(values[0], Rational{1, 100});
    case Kind::kFunction:
      return ApplyExactly(expression.name, values);
    default:
      return std::nullopt;
  }
}

std::optional<Complex> Evaluate(const Expression& expression, const Assignment& symbols) {
  std::vector<Complex> values;
  for (const Expression& argument : expression.arguments) {
    const auto value = Evaluate(argument, symbols);
    if (!value) return std::nullopt;
    values.push_back(*value);
  }
  switch (expression.kind) {
    case Kind::kNumber:
      return expression.number;
    case Kind::kSymbol: {
      if (expression.name == "\\pi") return kPi;
      if (expression.name == "e") return std::numbers::e_v<long double>;
      if (expression.name == "i") return Complex(0, 1);
      if (expression.name == "\\infty") return std::numeric_limits<long double>::infinity();
      const auto found = symbols.find(expression.name);
      return found == symbols.end() ? std::nullopt
                                    : std::optional<Complex>(found->second.ToFloat());
    }
    case Kind::kSum:
      return Fold(values, Complex(0), [](Complex a, Complex b) { return std::optional(a + b); });
    case Kind::kProduct:
      return Fold(values, Complex(1), [](Complex a, Complex b) { return std::optional(a * b); });
    case Kind::kPower: {
      // Whole exponents by multiplication, so that signs and zero come out right.
      const long double exponent = values[1].real();
      if (values[1].imag() == 0 && exponent == std::round(exponent) && std::abs(exponent) <= 64) {
        Complex result = 1;
        for (int i = 0; i < static_cast<int>(std::abs(exponent)); ++i) result *= values[0];
        return exponent < 0 ? Complex(1) / result : result;
      }
      return std::pow(values[0], values[1]);
    }
    case Kind::kPercent:
      return values[0] / 100.0L;
    case Kind::kFunction:
      return Apply(expression.name, values);
    default:
      return std::nullopt;
  }
}

}  // namespace loopspec::measure

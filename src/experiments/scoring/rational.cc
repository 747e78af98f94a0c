#include "experiments/scoring/rational.h"

#include <cmath>

namespace loopspec::measure {
namespace {

Int128 Gcd(Int128 a, Int128 b) {
  while (b != 0) {
    const Int128 rest = a % b;
    a = b;
    b = rest;
  }
  return a < 0 ? -a : a;
}

std::optional<Int128> Times(Int128 a, Int128 b) {
  Int128 result = 0;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

std::optional<Int128> IntegerPower(Int128 base, int exponent) {
  Int128 result = 1;
  for (int i = 0; i < exponent; ++i) {
    const auto next = Times(result, base);
    if (!next) return std::nullopt;
    result = *next;
  }
  return result;
}

// The whole `degree`-th root of a number that has one.
std::optional<Int128> ExactRoot(Int128 value, int degree) {
  if (value < 0 && degree % 2 == 0) return std::nullopt;
  const bool negative = value < 0;
  const long double size = static_cast<long double>(negative ? -value : value);
  const Int128 guess = static_cast<Int128>(std::llround(std::pow(size, 1.0L / degree)));
  for (Int128 root = guess > 0 ? guess - 1 : 0; root <= guess + 1; ++root) {
    const auto power = IntegerPower(root, degree);
    if (power && *power == (negative ? -value : value)) return negative ? -root : root;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Rational> MakeRational(Int128 numerator, Int128 denominator) {
  constexpr Int128 kLowest = static_cast<Int128>(1) << 126;
  if (denominator == 0) return std::nullopt;
  // Keeps clear of the one value that cannot be negated.
  if (numerator <= -kLowest || denominator <= -kLowest) return std::nullopt;
  if (denominator < 0) {
    numerator = -numerator;
    denominator = -denominator;
  }
  const Int128 common = Gcd(numerator, denominator);
  return Rational{numerator / common, denominator / common};
}

std::optional<Rational> Add(const Rational& a, const Rational& b) {
  const auto left = Times(a.numerator, b.denominator), right = Times(b.numerator, a.denominator);
  const auto below = Times(a.denominator, b.denominator);
  Int128 sum = 0;
  if (!left || !right || !below || __builtin_add_overflow(*left, *right, &sum)) return std::nullopt;
  return MakeRational(sum, *below);
}

std::optional<Rational> Multiply(const Rational& a, const Rational& b) {
  const auto above = Times(a.numerator, b.numerator), below = Times(a.denominator, b.denominator);
  if (!above || !below) return std::nullopt;
  return MakeRational(*above, *below);
}

std::optional<Rational> Divide(const Rational& a, const Rational& b) {
  const auto inverse = MakeRational(b.denominator, b.numerator);
  return inverse ? Multiply(a, *inverse) : std::nullopt;
}

std::optional<Rational> Power(const Rational& base, const Rational& exponent) {
  constexpr Int128 kMost = 1000;
  Int128 n = exponent.numerator;
  const bool invert = n < 0;
  if (invert) n = -n;
  if (n > kMost || exponent.denominator > kMost) return std::nullopt;
  Rational root = base;
  if (!exponent.IsInteger()) {
    // Odd roots of negative numbers are complex in the principal branch: left to floating point.
    if (base.numerator < 0) return std::nullopt;
    const int degree = static_cast<int>(exponent.denominator);
    const auto above = ExactRoot(base.numerator, degree),
               below = ExactRoot(base.denominator, degree);
    if (!above || !below) return std::nullopt;
    root = {*above, *below};
  }
  const auto above = IntegerPower(root.numerator, static_cast<int>(n));
  const auto below = IntegerPower(root.denominator, static_cast<int>(n));
  if (!above || !below) return std::nullopt;
  return invert ? MakeRational(*below, *above) : MakeRational(*above, *below);
}

std::optional<Rational> Factorial(const Rational& n) {
  if (!n.IsInteger() || n.numerator < 0 || n.numerator > 33) return std::nullopt;
  Int128 result = 1;
  for (Int128 i = 2; i <= n.numerator; ++i) result *= i;
  return Rational{result, 1};
}

}  // namespace loopspec::measure

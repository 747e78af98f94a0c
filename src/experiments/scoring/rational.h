// Exact fractions of 128-bit integers that say when they do not fit.
#pragma once

#include <optional>

namespace loopspec::measure {

__extension__ using Int128 = __int128;

struct Rational {
  Int128 numerator = 0;
  Int128 denominator = 1;  // positive, no common divisor with the numerator

  bool operator==(const Rational&) const = default;
  bool IsInteger() const { return denominator == 1; }
  long double ToFloat() const {
    return static_cast<long double>(numerator) / static_cast<long double>(denominator);
  }
};

// Nothing when the result does not fit or a divisor is zero.
std::optional<Rational> MakeRational(Int128 numerator, Int128 denominator);
std::optional<Rational> Add(const Rational& a, const Rational& b);
std::optional<Rational> Multiply(const Rational& a, const Rational& b);
std::optional<Rational> Divide(const Rational& a, const Rational& b);
// `exponent` whole; a root of a perfect power is exact too, nothing otherwise.
std::optional<Rational> Power(const Rational& base, const Rational& exponent);
// Nothing unless 0 <= n <= 33.
std::optional<Rational> Factorial(const Rational& n);

}  // namespace loopspec::measure

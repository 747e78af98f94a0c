// Decimal numbers as their digits, for bounds that are compared digit by digit.
#pragma once

#include <string>

#include "base/json.h"

namespace loopspec::grammar {

struct Decimal {
  bool negative = false;
  std::string whole = "0";  // without leading zeros
  std::string fraction;     // without trailing zeros

  bool IsZero() const { return whole == "0" && fraction.empty(); }
  bool IsWhole() const { return fraction.empty(); }
  Decimal Negated() const;
};

// Throws Error for numbers of more than a few hundred digits.
Decimal DecimalOf(const OrderedJson& number);
// Negative, zero or positive as a is below, at or above b.
int Compare(const Decimal& a, const Decimal& b);
// The next number above or below with `places` digits after the point.
Decimal NextAbove(const Decimal& number, size_t places);
Decimal NextBelow(const Decimal& number, size_t places);
// Rounded to a whole number.
Decimal Ceiling(const Decimal& number);
Decimal Floor(const Decimal& number);

}  // namespace loopspec::grammar

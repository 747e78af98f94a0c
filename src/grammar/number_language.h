// JSON numbers within bounds, as languages over bytes.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "grammar/decimal.h"
#include "grammar/regular.h"

namespace loopspec::grammar {

// Digits that a double holds exactly: different numbers of at most 15 digits are different doubles.
inline constexpr size_t kExactDigits = 15;

struct NumberBounds {
  std::optional<Decimal> min, max;
  bool exclusive_min = false;
  bool exclusive_max = false;
  std::vector<Decimal> multiples;  // a multiple of each
};

// Whole numbers, written without a point or an exponent.
Node IntegerLanguage(Regular& regular, const NumberBounds& bounds);
// Any numbers. With bounds they have no exponent, unless it cannot matter.
Node NumberLanguage(Regular& regular, const NumberBounds& bounds);

}  // namespace loopspec::grammar

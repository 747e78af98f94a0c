// The values that a number may have, and how messages say so.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace loopspec {

inline constexpr double kMaxInt = std::numeric_limits<int32_t>::max();

struct Range {
  double low = 0;
  double high = 0;
  bool above = false;  // `low` itself is not allowed

  // False for NaN.
  bool Holds(double value) const { return (above ? value > low : value >= low) && value <= high; }
};

// "0 to 1", "above 0, at most 1000"; "0 or more" where the upper end is kMaxInt.
std::string Expected(const Range& range);

}  // namespace loopspec

#include "grammar/decimal.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/error.h"
#include "fmt/format.h"

namespace loopspec::grammar {
namespace {

constexpr int kMaxDigits = 400;

void Trim(Decimal& number) {
  number.whole.erase(0, std::min(number.whole.find_first_not_of('0'), number.whole.size()));
  if (number.whole.empty()) number.whole = "0";
  while (!number.fraction.empty() && number.fraction.back() == '0') number.fraction.pop_back();
  if (number.IsZero()) number.negative = false;
}

int CompareMagnitudes(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  const int whole = a.whole.compare(b.whole);
  return whole != 0 ? whole : a.fraction.compare(b.fraction);
}

// The magnitude plus or minus one unit of the last of `places` digits after the point.
Decimal Shift(const Decimal& number, size_t places, bool away) {
  std::string digits = "0" + number.whole + number.fraction;
  digits.resize(1 + number.whole.size() + std::max(places, number.fraction.size()), '0');
  for (size_t i = 1 + number.whole.size() + places; i-- > 0;) {
    char& digit = digits[i];
    if (away) {
      digit = digit == '9' ? '0' : static_cast<char>(digit + 1);
      if (digit != '0') break;
    } else {
      digit = digit == '0' ? '9' : static_cast<char>(digit - 1);
      if (digit != '9') break;
    }
  }
  Decimal moved;
  moved.negative = number.negative;
  moved.whole = digits.substr(0, 1 + number.whole.size());
  moved.fraction = digits.substr(1 + number.whole.size());
  Trim(moved);
  return moved;
}

Decimal Unit(size_t places, bool negative) {
  Decimal unit;
  unit.negative = negative;
  if (places == 0) {
    unit.whole = "1";
  } else {
    unit.fraction = std::string(places - 1, '0') + "1";
  }
  return unit;
}

}  // namespace

Decimal Decimal::Negated() const {
  Decimal result = *this;
  result.negative = !negative && !IsZero();
  return result;
}

Decimal DecimalOf(const OrderedJson& number) {
  std::string text;
  if (number.is_number_unsigned()) {
    text = fmt::format("{}", number.get<uint64_t>());
  } else if (number.is_number_integer()) {
    text = fmt::format("{}", number.get<int64_t>());
  } else {
    const double value = number.get<double>();
    if (!std::isfinite(value)) Fail("a number of the schema is not finite");
    text = fmt::format("{}", value);
  }
  Decimal result;
  std::string_view rest = text;
  if (rest.front() == '-') {
    result.negative = true;
    rest.remove_prefix(1);
  }
  int exponent = 0;
  const size_t e = rest.find('e');
  if (e != std::string_view::npos) {
    exponent = std::stoi(std::string(rest.substr(e + 1)));
    rest = rest.substr(0, e);
  }
  const size_t point = rest.find('.');
  std::string digits(rest.substr(0, point));
  int before = static_cast<int>(digits.size()) + exponent;
  if (point != std::string_view::npos) digits += rest.substr(point + 1);
  if (std::abs(before) > kMaxDigits) Fail("a number of the schema has too many digits: {}", text);
  if (before <= 0) {
    digits.insert(0, static_cast<size_t>(1 - before), '0');
    before = 1;
  }
  if (digits.size() < static_cast<size_t>(before)) digits.resize(static_cast<size_t>(before), '0');
  result.whole = digits.substr(0, static_cast<size_t>(before));
  result.fraction = digits.substr(static_cast<size_t>(before));
  Trim(result);
  return result;
}

int Compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  const int magnitudes = CompareMagnitudes(a, b);
  return a.negative ? -magnitudes : magnitudes;
}

Decimal NextAbove(const Decimal& number, size_t places) {
  if (number.IsZero()) return Unit(places, false);
  return Shift(number, places, !number.negative);
}

Decimal NextBelow(const Decimal& number, size_t places) {
  return NextAbove(number.Negated(), places).Negated();
}

Decimal Ceiling(const Decimal& number) {
  Decimal whole = number;
  whole.fraction.clear();
  if (number.negative || number.IsWhole()) {
    Trim(whole);
    return whole;
  }
  return Shift(whole, 0, true);
}

Decimal Floor(const Decimal& number) {
  return Ceiling(number.Negated()).Negated();
}

}  // namespace loopspec::grammar

#include "grammar/number_language.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "base/error.h"

namespace loopspec::grammar {
namespace {

// The smallest number above zero has this many digits after the point.
constexpr size_t kDigitsNearZero = 40;
// States of the automaton of remainders.
constexpr uint64_t kMaxRemainders = 100'000;

Node Digit(Regular& regular, char low, char high) {
  return low > high ? kNothing
                    : regular.Range(static_cast<uint8_t>(low), static_cast<uint8_t>(high));
}
Node Digits(Regular& regular, uint32_t min) {
  return regular.Repeat(Digit(regular, '0', '9'), min, kUnbounded);
}

// Numbers without a sign from low to high, both included, of `length` digits before the point.
class OneLength {
 public:
  // A bound that is not of this length bounds nothing: null.
  OneLength(Regular& regular, const Decimal* low, const Decimal* high, size_t length, bool whole)
      : regular_(regular), low_(low), high_(high), length_(length), whole_(whole) {}

  Node Make() { return Before(0, low_ != nullptr, high_ != nullptr); }

 private:
  static char At(const std::string& digits, size_t i) {
    return i < digits.size() ? digits[i] : '0';
  }

  // `on_low`: the digits so far are those of the lower bound.
  Node Before(size_t i, bool on_low, bool on_high) {
    if (i == length_) return After(0, on_low, on_high);
    const auto key = std::make_tuple(i, on_low, on_high);
    const auto known = before_.find(key);
    if (known != before_.end()) return known->second;
    const char first = i == 0 && length_ > 1 ? '1' : '0';
    const char low = std::max(first, on_low ? low_->whole[i] : '0');
    const char high = on_high ? high_->whole[i] : '9';
    const Node node = Split(low, high, on_low && low_->whole[i] == low, on_high,
                            [&](bool lower, bool upper) { return Before(i + 1, lower, upper); });
    before_.emplace(key, node);
    return node;
  }

  // From digit i after the point on.
  Node After(size_t i, bool on_low, bool on_high) {
    // A bound without further digits: zeros follow.
    if (on_low && i >= low_->fraction.size()) on_low = false;
    const bool only_zeros = on_high && i >= high_->fraction.size();
    std::vector<Node> choices;
    if (!on_low) choices.push_back(kEmpty);
    if (!whole_) {
      Node more = kNothing;
      if (only_zeros) {
        more = on_low ? kNothing : regular_.Repeat(regular_.Byte('0'), 1, kUnbounded);
      } else if (!on_low && !on_high) {
        more = Digits(regular_, 1);
      } else {
        const char low = on_low ? At(low_->fraction, i) : '0';
        const char high = on_high ? At(high_->fraction, i) : '9';
        more = Split(low, high, on_low, on_high,
                     [&](bool lower, bool upper) { return After(i + 1, lower, upper); });
      }
      choices.push_back(i == 0 ? regular_.Concat(regular_.Byte('.'), more) : more);
    }
    return regular_.Or(std::move(choices));
  }

  // A digit from low to high, then what `rest` says.
  template <typename Rest>
  Node Split(char low, char high, bool on_low, bool on_high, const Rest& rest) {
    if (low > high) return kNothing;
    std::vector<Node> choices;
    const auto add = [&](char from, char to, bool lower, bool upper) {
      if (from > to) return;
      choices.push_back(regular_.Concat(Digit(regular_, from, to), rest(lower, upper)));
    };
    if (low == high) {
      add(low, high, on_low, on_high);
    } else {
      char from = low;
      char to = high;
      if (on_low) add(from++, low, true, false);
      if (on_high) add(to--, high, false, true);
      add(from, to, false, false);
    }
    return regular_.Or(std::move(choices));
  }

  Regular& regular_;
  const Decimal* low_;
  const Decimal* high_;
  size_t length_;
  bool whole_;
  std::map<std::tuple<size_t, bool, bool>, Node> before_;
};

// Numbers without a sign; both bounds are at least 0.
Node Magnitudes(Regular& regular, const Decimal& low, const std::optional<Decimal>& high,
                bool whole) {
  if (high && Compare(low, *high) > 0) return kNothing;
  std::vector<Node> choices;
  const size_t last = high ? high->whole.size() : low.whole.size();
  for (size_t length = low.whole.size(); length <= last; ++length) {
    choices.push_back(OneLength(regular, length == low.whole.size() ? &low : nullptr,
                                high && length == high->whole.size() ? &*high : nullptr, length,
                                whole)
                          .Make());
  }
  if (!high) {
    const Node fraction = regular.Optional(regular.Concat(regular.Byte('.'), Digits(regular, 1)));
    choices.push_back(
        regular.Concat({Digit(regular, '1', '9'), Digits(regular, static_cast<uint32_t>(last)),
                        whole ? kEmpty : fraction}));
  }
  return regular.Or(std::move(choices));
}

Node WithinBounds(Regular& regular, const std::optional<Decimal>& min,
                  const std::optional<Decimal>& max, bool whole) {
  const Decimal zero;
  std::vector<Node> choices;
  if (!max || !max->negative) {
    choices.push_back(Magnitudes(regular, min && !min->negative ? *min : zero, max, whole));
  }
  if (!min || min->negative) {
    const Decimal low = max && max->negative ? max->Negated() : zero;
    std::optional<Decimal> high;
    if (min) high = min->Negated();
    choices.push_back(regular.Concat(regular.Byte('-'), Magnitudes(regular, low, high, whole)));
  }
  return regular.Or(std::move(choices));
}

// Numbers that are a multiple of `unit`, with a sign or without; other bounds are put on top.
Node Multiples(Regular& regular, const Decimal& unit) {
  if (unit.IsZero() || unit.negative) Fail("multipleOf of the schema is not above 0");
  const size_t places = unit.fraction.size();
  std::string digits = unit.whole + unit.fraction;
  digits.erase(0, digits.find_first_not_of('0'));
  if (digits.size() > 6 || std::stoull(digits) * (places + 2) > kMaxRemainders) {
    Fail("the schema's keyword multipleOf cannot be enforced for {}.{}", unit.whole, unit.fraction);
  }
  const uint64_t modulus = std::stoull(digits);
  std::vector<uint64_t> power{1};  // of ten
  for (size_t i = 0; i < places; ++i) power.push_back(power.back() * 10 % modulus);
  // State of remainder r with j digits after the point, j = 0 before it: 2 + j * modulus + r; with
  // the point just read: 2 + (places + 1) * modulus + r. State 0 is the start, 1 has read the sign.
  Table table;
  table.states.resize(2 + (places + 2) * modulus);
  const auto state = [&](size_t j, uint64_t r) {
    return static_cast<uint32_t>(2 + j * modulus + r);
  };
  const auto digit = [&](Table::State& from, uint64_t value, uint32_t to) {
    const auto byte = static_cast<uint8_t>('0' + value);
    from.edges.push_back({byte, byte, to});
  };
  for (const uint32_t start : {0u, 1u}) {
    if (start == 0) table.states[0].edges.push_back({'-', '-', 1});
    for (uint64_t d = 0; d < 10; ++d) digit(table.states[start], d, state(0, d % modulus));
  }
  for (uint64_t r = 0; r < modulus; ++r) {
    // Whether the remainder after j digits becomes 0 by zeros alone.
    const auto divides = [&](size_t j) { return r * power[places - j] % modulus == 0; };
    for (size_t j = 0; j <= places; ++j) {
      Table::State& here = table.states[state(j, r)];
      here.accepts = divides(j);
      if (j == 0) here.edges.push_back({'.', '.', state(places + 1, r)});
      if (j == 0 || j < places) {
        for (uint64_t d = 0; d < 10; ++d) {
          digit(here, d, state(j == 0 ? 0 : j + 1, (r * 10 + d) % modulus));
        }
      } else {
        digit(here, 0, state(j, r));
      }
    }
    Table::State& point = table.states[state(places + 1, r)];
    if (places == 0) {
      // Zeros alone; the point's own state stands for them once one has been read.
      digit(point, 0, state(1, r));
    } else {
      for (uint64_t d = 0; d < 10; ++d) digit(point, d, state(1, (r * 10 + d) % modulus));
    }
  }
  if (places == 0) {  // state(1, r) is the point's state then, which accepts after a zero
    Table fixed = table;
    const auto base = static_cast<uint32_t>(fixed.states.size());
    for (uint64_t r = 0; r < modulus; ++r) {
      const auto zeros = static_cast<uint32_t>(base + r);
      fixed.states.emplace_back();
      fixed.states.back().accepts = r == 0;
      fixed.states.back().edges.push_back({'0', '0', zeros});
      fixed.states[state(1, r)].edges.assign(1, {'0', '0', zeros});
    }
    table = std::move(fixed);
  }
  return regular.FromTable(Pruned(std::move(table)));
}

// The bounds with both ends included.
void IncludeEnds(NumberBounds& bounds, bool whole) {
  const auto places = [&](const Decimal& bound) -> size_t {
    if (whole) return 0;
    if (bound.IsZero()) return kDigitsNearZero;
    return std::max(bound.fraction.size(),
                    bound.whole.size() >= kExactDigits ? 0 : kExactDigits - bound.whole.size());
  };
  if (whole) {
    // 3 < x with whole x is 4 <= x, and 3.5 < x is too.
    if (bounds.min) {
      const Decimal up = Ceiling(*bounds.min);
      if (!bounds.min->IsWhole()) bounds.exclusive_min = false;
      bounds.min = up;
    }
    if (bounds.max) {
      const Decimal down = Floor(*bounds.max);
      if (!bounds.max->IsWhole()) bounds.exclusive_max = false;
      bounds.max = down;
    }
  }
  if (bounds.min && bounds.exclusive_min) {
    bounds.min = NextAbove(*bounds.min, places(*bounds.min));
  }
  if (bounds.max && bounds.exclusive_max) {
    bounds.max = NextBelow(*bounds.max, places(*bounds.max));
  }
  bounds.exclusive_min = bounds.exclusive_max = false;
}

Node WithMultiples(Regular& regular, Node node, const NumberBounds& bounds) {
  std::vector<Node> parts{node};
  for (const Decimal& unit : bounds.multiples) parts.push_back(Multiples(regular, unit));
  return regular.And(std::move(parts));
}

}  // namespace

Node IntegerLanguage(Regular& regular, const NumberBounds& given) {
  NumberBounds bounds = given;
  IncludeEnds(bounds, true);
  std::erase_if(bounds.multiples,
                [](const Decimal& unit) { return unit.whole == "1" && unit.fraction.empty(); });
  const Node node = WithinBounds(regular, bounds.min, bounds.max, true);
  return bounds.multiples.empty() ? node : WithMultiples(regular, node, bounds);
}

Node NumberLanguage(Regular& regular, const NumberBounds& given) {
  NumberBounds bounds = given;
  IncludeEnds(bounds, false);
  const Node plain = WithinBounds(regular, bounds.min, bounds.max, false);
  if (!bounds.multiples.empty()) return WithMultiples(regular, plain, bounds);
  // Exponents up to 307: everybody's doubles hold them.
  const Node digit = Digit(regular, '0', '9');
  const Node size = regular.Or({regular.Repeat(digit, 1, 2),
                                regular.Concat({Digit(regular, '1', '2'), digit, digit}),
                                regular.Concat(regular.Text("30"), Digit(regular, '0', '7'))});
  ByteSet e;
  e.set('e');
  e.set('E');
  ByteSet sign;
  sign.set('+');
  sign.set('-');
  const Node minus = regular.Optional(regular.Byte('-'));
  const Node fraction = regular.Concat(regular.Byte('.'), Digits(regular, 1));
  const Node any_exponent =
      regular.Concat({regular.Bytes(e), regular.Optional(regular.Bytes(sign)), size});
  // Not zero: the value keeps its sign whatever the exponent.
  const Node nonzero = regular.Or(
      {regular.Concat({Digit(regular, '1', '9'), Digits(regular, 0), regular.Optional(fraction)}),
       regular.Concat({regular.Text("0."), Digits(regular, 0), Digit(regular, '1', '9'),
                       Digits(regular, 0)})});
  std::vector<Node> choices{plain};
  const bool min_allows_all = !bounds.min;
  const bool max_allows_all = !bounds.max;
  if (min_allows_all && max_allows_all) {
    choices.push_back(regular.Concat({minus, nonzero, any_exponent}));
    choices.push_back(
        regular.Concat({minus, regular.Byte('0'),
                        regular.Optional(regular.Concat(
                            regular.Byte('.'), regular.Repeat(regular.Byte('0'), 1, kUnbounded))),
                        any_exponent}));
    return regular.Or(std::move(choices));
  }
  // From zero on, or above it: positive numbers with any exponent; and the other way round.
  const bool from_zero = given.min && given.min->IsZero() && !given.max;
  const bool to_zero = given.max && given.max->IsZero() && !given.min;
  if (from_zero) choices.push_back(regular.Concat(nonzero, any_exponent));
  if (to_zero) choices.push_back(regular.Concat({regular.Byte('-'), nonzero, any_exponent}));
  // A digit with an exponent of -2 or below is between 0 and 0.1.
  const Node one_or_zero = regular.Concat(regular.Repeat(regular.Byte('0'), 0, kUnbounded),
                                          regular.Optional(regular.Byte('1')));
  const Node small =
      regular.Concat({Digit(regular, '1', '9'), regular.Optional(fraction), regular.Bytes(e),
                      regular.Byte('-'), regular.And({size, regular.Not(one_or_zero)})});
  Decimal tenth;
  tenth.fraction = "1";
  if ((!given.min || given.min->negative || given.min->IsZero()) &&
      (!bounds.max || Compare(*bounds.max, tenth) >= 0)) {
    choices.push_back(small);
  }
  if ((!given.max || !given.max->negative) &&
      (!bounds.min || Compare(*bounds.min, tenth.Negated()) <= 0)) {
    choices.push_back(regular.Concat(regular.Byte('-'), small));
  }
  return regular.Or(std::move(choices));
}

}  // namespace loopspec::grammar

// Questions about the shapes of a schema: whether a value fulfils one, whether any can.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/utf8.h"
#include "grammar/characters.h"
#include "grammar/schema_shapes.h"

namespace loopspec::grammar {
namespace {

constexpr int kMaxDepth = 6;
// States that are worth a visit to leave out a count.
constexpr size_t kQuickSearch = 300;

uint32_t TypeOf(const OrderedJson& value) {
  if (value.is_null()) return kNull;
  if (value.is_boolean()) return kBoolean;
  if (value.is_number_float()) {
    const double number = value.get<double>();
    return std::floor(number) == number ? kInteger : kFraction;
  }
  if (value.is_number()) return kInteger;
  if (value.is_string()) return kString;
  return value.is_array() ? kArray : kObject;
}

// Whether it is the unit times a whole number, for numbers of moderate size.
bool IsMultiple(const Decimal& number, const Decimal& unit) {
  const size_t places = std::max(number.fraction.size(), unit.fraction.size());
  const auto scaled = [&](const Decimal& decimal) {
    std::string digits = decimal.whole + decimal.fraction;
    digits.append(places - decimal.fraction.size(), '0');
    return digits;
  };
  const std::string divisor_digits = scaled(unit);
  if (divisor_digits.size() > 17) return false;
  const uint64_t divisor = std::stoull(divisor_digits);
  if (divisor == 0) return false;
  uint64_t rest = 0;
  for (const char c : scaled(number)) rest = (rest * 10 + static_cast<uint64_t>(c - '0')) % divisor;
  return rest == 0;
}

bool WithinNumberBounds(const OrderedJson& value, const NumberBounds& bounds) {
  const Decimal number = DecimalOf(value);
  if (bounds.min) {
    const int order = Compare(number, *bounds.min);
    if (order < 0 || (order == 0 && bounds.exclusive_min)) return false;
  }
  if (bounds.max) {
    const int order = Compare(number, *bounds.max);
    if (order > 0 || (order == 0 && bounds.exclusive_max)) return false;
  }
  return std::ranges::all_of(bounds.multiples,
                             [&](const Decimal& unit) { return IsMultiple(number, unit); });
}

}  // namespace

Node SchemaReader::StringLanguage(const Shape& shape) {
  const auto max = static_cast<uint32_t>(std::min<uint64_t>(shape.max_length, kUnbounded));
  const auto min = static_cast<uint32_t>(shape.min_length);
  if (shape.min_length > shape.max_length) return kNothing;
  std::vector<Node> parts = shape.texts;
  const bool counted = min > 0 || max != kUnbounded;
  if (parts.empty() || counted) {
    const Node length = regular_.Repeat(character_, min, max);
    // A pattern that keeps the bounds by itself needs no counting beside it.
    const auto keeps = [&](Node pattern) {
      const Regular::Lengths lengths = regular_.LengthsOf(pattern);
      if (lengths.known) return lengths.min >= min && lengths.max <= max;
      return regular_.IsKnownToContain(length, pattern, kQuickSearch);
    };
    if (parts.size() != 1 || !keeps(parts.front())) parts.push_back(length);
  }
  for (const OrderedJson* value : shape.excluded) {
    if (!value->is_string()) continue;
    parts.push_back(regular_.Not(
        SpelledText(regular_, value->get_ref<const std::string&>(), Writing::kJsonString)));
  }
  // A complement alone would take bytes that are no string.
  if (std::ranges::none_of(parts, [&](Node part) { return regular_.IsPlain(part); })) {
    parts.push_back(regular_.Repeat(character_, 0, kUnbounded));
  }
  const Node node = regular_.And(std::move(parts));
  return regular_.Alive(node) ? node : kNothing;
}

Node SchemaReader::StringLanguage(const Demands& demands) {
  std::vector<Node> choices;
  for (const Shape& shape : Shapes(demands)) {
    if ((shape.types & kString) == 0) continue;
    if (!shape.values) {
      choices.push_back(StringLanguage(shape));
      continue;
    }
    for (const OrderedJson* value : *shape.values) {
      if (!value->is_string() || !Fulfils(*value, shape)) continue;
      choices.push_back(
          SpelledText(regular_, value->get_ref<const std::string&>(), Writing::kJsonString));
    }
  }
  return regular_.Or(std::move(choices));
}

bool SchemaReader::Fulfils(const OrderedJson& value, const Demands& demands) {
  return std::ranges::any_of(Shapes(demands),
                             [&](const Shape& shape) { return Fulfils(value, shape); });
}

bool SchemaReader::Fulfils(const OrderedJson& value, const Shape& shape) {
  const uint32_t type = TypeOf(value);
  const auto equals = [&](const OrderedJson* other) { return *other == value; };
  if ((shape.types & type) == 0) return false;
  if (shape.values && std::ranges::none_of(*shape.values, equals)) return false;
  if (std::ranges::any_of(shape.excluded, equals)) return false;
  if ((type & kNumber) != 0) return WithinNumberBounds(value, shape.number);
  if (type == kString) {
    const auto& text = value.get_ref<const std::string&>();
    if (!IsValidUtf8(text)) return false;
    const size_t length = CountCharacters(text);
    if (length < shape.min_length || length > shape.max_length) return false;
    const std::string quoted = QuotedJson(text);
    const std::string_view content = std::string_view(quoted).substr(1, quoted.size() - 2);
    return std::ranges::all_of(shape.texts,
                               [&](Node node) { return regular_.Matches(node, content); });
  }
  if (type == kArray) {
    if (value.size() < shape.min_items || value.size() > shape.max_items) return false;
    for (size_t i = 0; i < value.size(); ++i) {
      for (const Shape::Items& items : shape.items) {
        const Demands& demands = i < items.prefix.size() ? items.prefix[i] : items.rest;
        if (!Fulfils(value[i], demands)) return false;
      }
      for (size_t k = 0; shape.unique && k < i; ++k) {
        if (value[k] == value[i]) return false;
      }
    }
    return std::ranges::all_of(shape.contains, [&](const Shape::Contains& contains) {
      const auto count = static_cast<uint64_t>(std::ranges::count_if(
          value, [&](const auto& item) { return Fulfils(item, contains.demands); }));
      return count >= contains.min && count <= contains.max;
    });
  }
  if (type == kObject) {
    if (value.size() < shape.min_properties || value.size() > shape.max_properties) return false;
    for (const std::string& name : shape.required) {
      if (!value.contains(name)) return false;
    }
    for (const auto& [name, member] : value.items()) {
      if (!Fulfils(member, shape.PropertyDemands(regular_, name))) return false;
      for (const Demands& demands : shape.names) {
        if (!Fulfils(OrderedJson(name), demands)) return false;
      }
    }
    for (const Shape::Present& present : shape.present) {
      const bool found = std::ranges::any_of(value.items(), [&](const auto& member) {
        const std::string quoted = QuotedJson(member.key());
        return regular_.Matches(present.names,
                                std::string_view(quoted).substr(1, quoted.size() - 2)) &&
               Fulfils(member.value(), present.value);
      });
      if (!found) return false;
    }
  }
  return true;
}

bool SchemaReader::Impossible(const Demands& demands, int depth) {
  if (depth > kMaxDepth || IsOpen(demands)) return false;
  return std::ranges::all_of(Shapes(demands),
                             [&](const Shape& shape) { return Impossible(shape, depth); });
}

bool SchemaReader::Impossible(const Shape& shape, int depth) {
  if (shape.values) {
    return std::ranges::none_of(*shape.values,
                                [&](const OrderedJson* value) { return Fulfils(*value, shape); });
  }
  if ((shape.types & (kNull | kBoolean)) != 0 && shape.excluded.empty()) return false;
  for (const OrderedJson& value : {OrderedJson(nullptr), OrderedJson(true), OrderedJson(false)}) {
    if ((shape.types & TypeOf(value)) != 0 && Fulfils(value, shape)) return false;
  }
  if ((shape.types & kFraction) != 0) {
    if (regular_.Alive(NumberLanguage(regular_, shape.number))) return false;
  } else if ((shape.types & kInteger) != 0) {
    if (regular_.Alive(IntegerLanguage(regular_, shape.number))) return false;
  }
  if ((shape.types & kString) != 0 && StringLanguage(shape) != kNothing) return false;
  if ((shape.types & kArray) != 0 && shape.min_items <= shape.max_items) {
    bool possible = true;
    for (size_t i = 0; i < std::min<uint64_t>(shape.min_items, 16) && possible; ++i) {
      Demands item;
      for (const Shape::Items& items : shape.items) {
        Add(item, i < items.prefix.size() ? items.prefix[i] : items.rest);
      }
      possible = !Impossible(item, depth + 1);
    }
    if (possible) return false;
  }
  if ((shape.types & kObject) != 0 && shape.min_properties <= shape.max_properties &&
      shape.required.size() <= shape.max_properties) {
    const bool possible = std::ranges::none_of(shape.required, [&](const std::string& name) {
      return Impossible(shape.PropertyDemands(regular_, name), depth + 1);
    });
    if (possible) return false;
  }
  return true;
}

}  // namespace loopspec::grammar

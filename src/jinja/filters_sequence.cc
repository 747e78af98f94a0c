// Filters that work on sequences and mappings.
#include <algorithm>
#include <functional>
#include <unordered_set>

#include "jinja/arguments.h"
#include "jinja/filters.h"
#include "jinja/interpreter.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace loopspec::jinja {
namespace {

// What a Python generator is to a template: nothing happens before its first item is asked for, and
// it is read once.
class Generator final : public Iterator {
 public:
  using Make = std::function<std::vector<Value>()>;
  Generator(Interpreter& interpreter, const Value& source, Make make)
      : Iterator("generator"),
        interpreter_(interpreter),
        depth_(source.Depth() + 1),
        make_(std::move(make)) {
    if (depth_ > kMaxValueDepth) Fail("chat template: generators nested too deep");
  }

  std::optional<Value> Next() override {
    if (make_) {
      const Budget::Level level(interpreter_.budget());
      const Make make = std::exchange(make_, nullptr);
      items_ = make();
    }
    if (position_ >= items_.size()) return std::nullopt;
    return items_[position_++];
  }
  int Depth() const override { return depth_; }

 private:
  Interpreter& interpreter_;
  int depth_;
  Make make_;
  std::vector<Value> items_;
  size_t position_ = 0;
};

Value MakeGenerator(Interpreter& interpreter, const Value& source, Generator::Make make) {
  return Value::Of(std::make_shared<Generator>(interpreter, source, std::move(make)));
}

Value IgnoreCase(const Value& value) {
  return value.IsString() ? Value::Of(ToLower(value.text())) : value;
}

// "a.b.0" is item 0 of attribute b of attribute a.
std::vector<Value> AttributeParts(const Value& attribute) {
  if (attribute.IsNone()) return {};
  if (!attribute.IsString()) return {attribute};
  std::vector<Value> parts;
  std::string_view rest = attribute.text();
  while (true) {
    const size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    const bool is_index =
        !part.empty() && part.size() < 18 && part.find_first_not_of("0123456789") == part.npos;
    int64_t index = 0;
    if (is_index) {
      for (const char c : part) index = index * 10 + (c - '0');
    }
    parts.push_back(is_index ? Value::Of(index) : Value::Of(part));
    if (dot == rest.size()) return parts;
    rest.remove_prefix(dot + 1);
  }
}

Value GetParts(Interpreter& interpreter, Value item, const std::vector<Value>& parts,
               const Value& fallback = Value::MakeNone()) {
  for (const Value& part : parts) {
    item = interpreter.GetItem(item, part);
    if (item.IsUndefined() && !fallback.IsNone()) item = fallback;
  }
  return item;
}

// Gives an item's key for sorting or comparing.
struct KeyGetter {
  KeyGetter(Interpreter& owner, const Value& attribute, bool is_case_sensitive)
      : interpreter(owner), parts(AttributeParts(attribute)), case_sensitive(is_case_sensitive) {}
  Value operator()(const Value& item) const {
    const Value key = GetParts(interpreter, item, parts);
    return case_sensitive ? key : IgnoreCase(key);
  }

  Interpreter& interpreter;
  std::vector<Value> parts;
  bool case_sensitive;
};

template <typename Key>
std::vector<Value> SortedBy(std::vector<Value> items, const Key& key, bool reverse,
                            Budget& budget) {
  std::vector<std::pair<Value, Value>> keyed;
  keyed.reserve(items.size());
  for (Value& item : items) keyed.emplace_back(key(item), std::move(item));
  // Equal items keep their order in both directions.
  if (reverse) std::reverse(keyed.begin(), keyed.end());
  std::stable_sort(keyed.begin(), keyed.end(),
                   [&](const auto& a, const auto& b) { return Less(a.first, b.first, budget); });
  if (reverse) std::reverse(keyed.begin(), keyed.end());
  items.clear();
  for (auto& [k, item] : keyed) items.push_back(std::move(item));
  return items;
}

Value Length(Interpreter&, const Value& value, const Arguments& arguments) {
  const Bound bound("length", arguments, {});
  return Value::Of(LengthOf(value));
}

Value First(Interpreter&, const Value& value, const Arguments& arguments) {
  const Bound bound("first", arguments, {});
  std::optional<Value> item = Iterate(value)->Next();
  return item ? *item : Value::MakeUndefined("No first item, sequence was empty.");
}

Value Last(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound("last", arguments, {});
  if (!TryLength(value)) Fail("chat template: '{}' object is not reversible", value.TypeName());
  const std::vector<Value> items = Collect(value, interpreter.budget());
  return items.empty() ? Value::MakeUndefined("No last item, sequence was empty.") : items.back();
}

Value List(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound("list", arguments, {});
  return Value::List(Collect(value, interpreter.budget()));
}

Value Join(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound("join", arguments, {"d", "attribute"});
  Budget& budget = interpreter.budget();
  const std::string separator = bound.Given(0) ? ToText(bound[0], budget) : "";
  const std::vector<Value> parts = AttributeParts(bound.Or(1, Value::MakeNone()));
  std::string out;
  bool first = true;
  for (const Value& item : Collect(value, budget)) {
    if (!first) out += separator;
    first = false;
    out += ToText(GetParts(interpreter, item, parts), budget);
    budget.CheckText(out.size());
    budget.ChargeText(separator.size());
  }
  return Value::Of(std::move(out));
}

Value Reverse(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound("reverse", arguments, {});
  Budget& budget = interpreter.budget();
  const Value none = Value::MakeNone();
  if (value.IsString()) return Slice(value, none, none, Value::Of(int64_t{-1}), budget);
  if (TryLength(value)) {
    return MakeGenerator(interpreter, value, [value, &budget] {
      std::vector<Value> items = Collect(value, budget);
      std::reverse(items.begin(), items.end());
      return items;
    });
  }
  std::vector<Value> items = Collect(value, budget);
  std::reverse(items.begin(), items.end());
  return Value::List(std::move(items));
}

// Several attributes, separated by commas, sort by the first, then the second ...
Value Sort(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  std::vector<KeyGetter> getters;
  const bool case_sensitive = bound.Truth(1, false);
  if (bound.Given(2) && bound[2].IsString()) {
    std::string_view rest = bound[2].text();
    while (true) {
      const size_t comma = std::min(rest.find(','), rest.size());
      getters.emplace_back(interpreter, Value::Of(rest.substr(0, comma)), case_sensitive);
      if (comma == rest.size()) break;
      rest.remove_prefix(comma + 1);
    }
  } else {
    getters.emplace_back(interpreter, bound.Or(2, Value::MakeNone()), case_sensitive);
  }
  const auto key = [&](const Value& item) {
    std::vector<Value> keys;
    for (const KeyGetter& getter : getters) keys.push_back(getter(item));
    return Value::List(std::move(keys));
  };
  Budget& budget = interpreter.budget();
  return Value::List(SortedBy(Collect(value, budget), key, bound.Truth(0, false), budget));
}

Value DictSort(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const bool case_sensitive = bound.Truth(0, false);
  const std::string by = bound.Text(1, "key");
  if (by != "key" && by != "value") {
    Fail("chat template: dictsort expected by 'key' or 'value', found '{}'", by);
  }
  RequireDefined(value);
  if (value.dict() == nullptr) {
    Fail("chat template: dictsort expected a mapping, found '{}'", value.TypeName());
  }
  std::vector<Value> items;
  for (const auto& [key, item] : value.dict()->items) items.push_back(Value::Tuple({key, item}));
  const auto key = [&](const Value& pair) {
    const Value& part = pair.sequence()->items[by == "key" ? 0 : 1];
    return case_sensitive ? part : IgnoreCase(part);
  };
  Budget& budget = interpreter.budget();
  budget.ChargeItems(items.size());
  return Value::List(SortedBy(std::move(items), key, bound.Truth(2, false), budget));
}

Value Unique(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound("unique", arguments, {"case_sensitive", "attribute"});
  const KeyGetter key(interpreter, bound.Or(1, Value::MakeNone()), bound.Truth(0, false));
  return MakeGenerator(interpreter, value, [key, value] {
    Budget& budget = key.interpreter.budget();
    Dict seen;  // hashes as Python does, and refuses what it cannot hash
    std::vector<Value> items;
    for (const Value& item : Collect(value, budget)) {
      const Value k = key(item);
      if (seen.Find(k, budget) != nullptr) continue;
      seen.Set(k, Value::MakeNone(), budget);
      items.push_back(item);
    }
    return items;
  });
}

template <bool kMax>
Value Extreme(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound(kMax ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  const KeyGetter key(interpreter, bound.Or(1, Value::MakeNone()), bound.Truth(0, false));
  Budget& budget = interpreter.budget();
  const std::vector<Value> items = Collect(value, budget);
  if (items.empty()) return Value::MakeUndefined("No aggregated item, sequence was empty.");
  const Value* best = &items[0];
  Value best_key = key(*best);
  for (size_t i = 1; i < items.size(); ++i) {
    const Value k = key(items[i]);
    if (ApplyComparison(kMax ? ">" : "<", k, best_key, budget)) {
      best = &items[i];
      best_key = k;
    }
  }
  return *best;
}

Value Sum(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound("sum", arguments, {"attribute", "start"});
  const std::vector<Value> parts = AttributeParts(bound.Or(0, Value::MakeNone()));
  Value total = bound.Or(1, Value::Of(int64_t{0}));
  if (total.IsString()) Fail("chat template: sum cannot add strings");
  for (const Value& item : Collect(value, interpreter.budget())) {
    total = ApplyBinary("+", total, GetParts(interpreter, item, parts), interpreter.budget());
  }
  return total;
}

Value Items(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound("items", arguments, {});
  return MakeGenerator(interpreter, value, [value, &interpreter] {
    std::vector<Value> items;
    if (value.IsUndefined()) return items;
    if (value.dict() == nullptr) {
      Fail("chat template: items expected a mapping, found '{}'", value.TypeName());
    }
    interpreter.budget().ChargeItems(value.dict()->items.size());
    for (const auto& [key, item] : value.dict()->items) items.push_back(Value::Tuple({key, item}));
    return items;
  });
}

Arguments Without(const Arguments& arguments, size_t count) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<ptrdiff_t>(count));
  return rest;
}

std::vector<Value> MapItems(Interpreter& interpreter, const Value& value,
                            const Arguments& arguments) {
  std::vector<Value> items;
  if (!value.Truthy()) return items;
  const auto attribute = std::find_if(arguments.named.begin(), arguments.named.end(),
                                      [](const auto& a) { return a.first == "attribute"; });
  if (arguments.positional.empty() && attribute != arguments.named.end()) {
    const Bound bound("map", arguments, {"attribute", "default"});
    const std::vector<Value> parts = AttributeParts(bound[0]);
    for (const Value& item : Collect(value, interpreter.budget())) {
      items.push_back(GetParts(interpreter, item, parts, bound.Or(1, Value::MakeNone())));
    }
    return items;
  }
  if (arguments.positional.empty()) Fail("chat template: map requires a filter argument");
  const std::string name = ToText(arguments.positional[0], interpreter.budget());
  const Arguments rest = Without(arguments, 1);
  for (const Value& item : Collect(value, interpreter.budget())) {
    interpreter.budget().Charge(1);
    items.push_back(interpreter.CallFilter(name, item, rest));
  }
  return items;
}

Value Map(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  return MakeGenerator(interpreter, value,
                       [=, &interpreter] { return MapItems(interpreter, value, arguments); });
}

// select, reject, selectattr, rejectattr: the items whose test, or truth without one, comes out as
// wanted.
std::vector<Value> SelectItems(Interpreter& interpreter, const Value& value,
                               const Arguments& arguments, bool by_attribute, bool wanted) {
  std::vector<Value> items;
  if (!value.Truthy()) return items;
  std::vector<Value> parts;
  if (by_attribute) {
    if (arguments.positional.empty()) Fail("chat template: missing the name of an attribute");
    parts = AttributeParts(arguments.positional[0]);
  }
  const size_t test = by_attribute ? 1 : 0;
  const bool has_test = arguments.positional.size() > test;
  const std::string name = has_test ? ToText(arguments.positional[test], interpreter.budget()) : "";
  const Arguments rest = has_test ? Without(arguments, test + 1) : Arguments();
  for (const Value& item : Collect(value, interpreter.budget())) {
    interpreter.budget().Charge(1);
    const Value tested = GetParts(interpreter, item, parts);
    if ((has_test ? interpreter.CallTest(name, tested, rest) : tested.Truthy()) == wanted) {
      items.push_back(item);
    }
  }
  return items;
}

template <bool kByAttribute, bool kWanted>
Value Select(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  return MakeGenerator(interpreter, value, [=, &interpreter] {
    return SelectItems(interpreter, value, arguments, kByAttribute, kWanted);
  });
}

constexpr Filter kSequenceFilters[] = {
    {"count", Length},
    {"dictsort", DictSort},
    {"first", First},
    {"items", Items},
    {"join", Join},
    {"last", Last},
    {"length", Length},
    {"list", List},
    {"map", Map},
    {"max", Extreme<true>},
    {"min", Extreme<false>},
    {"reject", Select<false, false>},
    {"rejectattr", Select<true, false>},
    {"reverse", Reverse},
    {"select", Select<false, true>},
    {"selectattr", Select<true, true>},
    {"sort", Sort},
    {"sum", Sum},
    {"unique", Unique},
};

}  // namespace

std::span<const Filter> SequenceFilters() {
  return kSequenceFilters;
}

}  // namespace loopspec::jinja

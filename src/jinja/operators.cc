#include "jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "base/escape_html.h"
#include "jinja/format.h"
#include "jinja/repr.h"
#include "jinja/unicode.h"

namespace loopspec::jinja {
namespace {

[[noreturn]] void FailOperands(std::string_view op, const Value& left, const Value& right) {
  RequireDefined(left);
  RequireDefined(right);
  Fail("chat template: unsupported operand types for {}: '{}' and '{}'", op, left.TypeName(),
       right.TypeName());
}

[[noreturn]] void FailOverflow(std::string_view op) {
  Fail("chat template: the result of {} does not fit a 64-bit integer", op);
}

Value Power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) Fail("chat template: 0 cannot be raised to a negative power");
    return Value::Of(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  bool base_overflowed = false;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && (base_overflowed || __builtin_mul_overflow(result, base, &result))) {
      FailOverflow("**");
    }
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) base_overflowed = true;
  }
  return Value::Of(result);
}

int64_t FloorDivide(int64_t a, int64_t b) {
  if (b == -1) {
    if (a == INT64_MIN) FailOverflow("//");
    return -a;
  }
  const int64_t quotient = a / b;
  return quotient - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

Value IntegerOperation(std::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  if (op == "+") {
    if (__builtin_add_overflow(a, b, &result)) FailOverflow(op);
    return Value::Of(result);
  }
  if (op == "-") {
    if (__builtin_sub_overflow(a, b, &result)) FailOverflow(op);
    return Value::Of(result);
  }
  if (op == "*") {
    if (__builtin_mul_overflow(a, b, &result)) FailOverflow(op);
    return Value::Of(result);
  }
  if (op == "**") return Power(a, b);
  if (b == 0) Fail("chat template: division by zero");
  if (op == "/") return Value::Of(static_cast<double>(a) / static_cast<double>(b));
  if (op == "//") return Value::Of(FloorDivide(a, b));
  return Value::Of(b == -1 ? int64_t{0} : a - b * FloorDivide(a, b));
}

double FloatModulo(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) {
    rest += b;
  } else if (rest == 0) {
    rest = std::copysign(0.0, b);
  }
  return rest;
}

double FloatFloorDivide(double a, double b) {
  const double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1 : whole;
}

Value FloatOperation(std::string_view op, double a, double b) {
  if (op == "+") return Value::Of(a + b);
  if (op == "-") return Value::Of(a - b);
  if (op == "*") return Value::Of(a * b);
  if (op == "**") {
    if (a == 0 && b < 0) Fail("chat template: 0.0 cannot be raised to a negative power");
    if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b)) {
      Fail("chat template: a power that is a complex number");
    }
    const double result = std::pow(a, b);
    if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) {
      Fail("chat template: the result of ** is too large");
    }
    return Value::Of(result);
  }
  if (b == 0) Fail("chat template: division by zero");
  if (op == "/") return Value::Of(a / b);
  if (op == "//") return Value::Of(FloatFloorDivide(a, b));
  return Value::Of(FloatModulo(a, b));
}

Value Repeat(const Value& value, int64_t count, Budget& budget) {
  const uint64_t times = count < 0 ? 0 : static_cast<uint64_t>(count);
  if (const String* s = value.string()) {
    uint64_t size = 0;
    if (__builtin_mul_overflow(times, uint64_t{s->text.size()}, &size)) size = UINT64_MAX;
    budget.ChargeText(size);
    std::string out;
    out.reserve(size);
    for (uint64_t i = 0; i < times && size > 0; ++i) out += s->text;
    return Value::Of(std::move(out), s->markup);
  }
  const Sequence& sequence = *value.sequence();
  uint64_t size = 0;
  if (__builtin_mul_overflow(times, uint64_t{sequence.items.size()}, &size)) size = UINT64_MAX;
  budget.ChargeItems(size);
  std::vector<Value> items;
  items.reserve(size);
  for (uint64_t i = 0; i < times && size > 0; ++i) {
    items.insert(items.end(), sequence.items.begin(), sequence.items.end());
  }
  return sequence.kind == SequenceKind::kList ? Value::List(std::move(items))
                                              : Value::Tuple(std::move(items));
}

bool IsListOrTuple(const Sequence* s) {
  return s != nullptr && s->kind <= SequenceKind::kTuple;
}

Value Add(const Value& left, const Value& right, Budget& budget) {
  if (left.IsString() && right.IsString()) {
    const String &a = *left.string(), &b = *right.string();
    budget.ChargeText(a.text.size() + b.text.size());
    if (a.markup == b.markup) return Value::Of(a.text + b.text, a.markup);
    return Value::Of(a.markup ? a.text + EscapeHtml(b.text) : EscapeHtml(a.text) + b.text, true);
  }
  const Sequence *a = left.sequence(), *b = right.sequence();
  if (IsListOrTuple(a) && IsListOrTuple(b) &&
      (a->kind == SequenceKind::kList) == (b->kind == SequenceKind::kList)) {
    budget.ChargeItems(a->items.size() + b->items.size());
    std::vector<Value> items = a->items;
    items.insert(items.end(), b->items.begin(), b->items.end());
    return a->kind == SequenceKind::kList ? Value::List(std::move(items))
                                          : Value::Tuple(std::move(items));
  }
  FailOperands("+", left, right);
}

Value Multiply(const Value& left, const Value& right, Budget& budget) {
  const auto repeatable = [](const Value& v) {
    return v.IsString() || IsListOrTuple(v.sequence());
  };
  if (repeatable(left) && right.integer()) return Repeat(left, *right.integer(), budget);
  if (repeatable(right) && left.integer()) return Repeat(right, *left.integer(), budget);
  FailOperands("*", left, right);
}

// The resolved bounds of a slice over `length` items, as Python resolves them.
struct SliceBounds {
  int64_t start, stop, step, count;
};

SliceBounds ResolveSlice(const Value& start, const Value& stop, const Value& step, int64_t length) {
  const auto part = [](const Value& value) -> std::optional<int64_t> {
    if (value.IsNone()) return std::nullopt;
    if (!value.integer()) {
      RequireDefined(value);
      Fail("chat template: slice indices must be integers or None, found '{}'", value.TypeName());
    }
    return value.integer();
  };
  const int64_t stride = part(step).value_or(1);
  if (stride == 0) Fail("chat template: slice step cannot be zero");
  const int64_t low = stride < 0 ? -1 : 0, high = stride < 0 ? length - 1 : length;
  const auto resolve = [&](std::optional<int64_t> bound, int64_t fallback) {
    if (!bound) return fallback;
    if (*bound < 0) return std::max(*bound < -length ? low : *bound + length, low);
    return std::min(*bound, high);
  };
  const int64_t first = resolve(part(start), stride < 0 ? high : low);
  const int64_t last = resolve(part(stop), stride < 0 ? low : high);
  int64_t count = 0;
  if (stride > 0 && first < last) count = (last - first - 1) / stride + 1;
  // -stride overflows for the smallest integer; dividing first does not.
  if (stride < 0 && first > last) count = (last - first + 1) / stride + 1;
  return {first, last, stride, count};
}

}  // namespace

std::string ReplaceText(std::string_view text, std::string_view old_text, std::string_view new_text,
                        int64_t count, Budget& budget) {
  budget.ChargeText(text.size());
  std::string out;
  size_t position = 0;
  while (count != 0) {
    size_t at = position;
    if (!old_text.empty()) {
      at = text.find(old_text, position);
      if (at == text.npos) break;
    }
    out.append(text.substr(position, at - position));
    out += new_text;
    budget.CheckText(out.size());
    budget.Charge(1 + static_cast<int64_t>(new_text.size() / 64));
    if (count > 0) --count;
    position = at + old_text.size();
    if (old_text.empty()) {  // new_text goes before every character and after the last
      if (position >= text.size()) break;
      NextCodePoint(text, &position);
      out.append(text.substr(at, position - at));
    }
  }
  out.append(text.substr(std::min(position, text.size())));
  budget.CheckText(out.size());
  return out;
}

Value ApplyBinary(std::string_view op, const Value& left, const Value& right, Budget& budget) {
  if (op == "%" && left.IsString()) return FormatPercent(left, right, budget);
  if (left.IsNumber() && right.IsNumber()) {
    const std::optional<int64_t> a = left.integer(), b = right.integer();
    if (a && b) return IntegerOperation(op, *a, *b);
    return FloatOperation(op, *left.number(), *right.number());
  }
  if (op == "+") return Add(left, right, budget);
  if (op == "*") return Multiply(left, right, budget);
  FailOperands(op, left, right);
}

Value Negate(const Value& value) {
  if (const std::optional<int64_t> number = value.integer()) {
    if (*number == INT64_MIN) FailOverflow("-");
    return Value::Of(-*number);
  }
  if (value.IsFloat()) return Value::Of(-*value.number());
  RequireDefined(value);
  Fail("chat template: bad operand type for unary -: '{}'", value.TypeName());
}

Value Positive(const Value& value) {
  if (const std::optional<int64_t> number = value.integer()) return Value::Of(*number);
  if (value.IsFloat()) return value;
  RequireDefined(value);
  Fail("chat template: bad operand type for unary +: '{}'", value.TypeName());
}

bool Contains(const Value& container, const Value& item, Budget& budget) {
  if (const String* s = container.string()) {
    if (!item.IsString()) {
      Fail("chat template: 'in <string>' requires string as left operand, not {}", item.TypeName());
    }
    budget.ChargeText(s->text.size());
    return s->text.find(item.text()) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) return dict->Find(item, budget) != nullptr;
  if (const Sequence* sequence = container.sequence()) {
    return std::any_of(sequence->items.begin(), sequence->items.end(),
                       [&](const Value& other) { return Equal(item, other, budget); });
  }
  const std::shared_ptr<Iterator> iterator = TryIterate(container);
  if (iterator == nullptr) {
    Fail("chat template: argument of type '{}' is not iterable", container.TypeName());
  }
  while (const std::optional<Value> other = iterator->Next()) {
    if (Equal(item, *other, budget)) return true;
  }
  return false;
}

bool ApplyComparison(std::string_view op, const Value& left, const Value& right, Budget& budget) {
  if (op == "==") return Equal(left, right, budget);
  if (op == "!=") return !Equal(left, right, budget);
  if (op == "in") return Contains(right, left, budget);
  if (op == "not in") return !Contains(right, left, budget);
  const std::optional<int> order = Compare(left, right, op, budget);
  if (!order) return false;
  if (op == "<") return *order < 0;
  if (op == "<=") return *order <= 0;
  if (op == ">") return *order > 0;
  return *order >= 0;
}

Value Slice(const Value& value, const Value& start, const Value& stop, const Value& step,
            Budget& budget) {
  RequireDefined(value);
  const Sequence* sequence = value.sequence();
  if (!value.IsString() && (sequence == nullptr || !sequence->Indexable())) {
    Fail("chat template: '{}' object cannot be sliced", value.TypeName());
  }
  const SliceBounds bounds = ResolveSlice(start, stop, step, LengthOf(value));
  if (const String* s = value.string()) {
    budget.ChargeText(s->text.size());
    const bool ascii = s->length == static_cast<int64_t>(s->text.size());
    const std::u32string points = ascii ? std::u32string() : Decode(s->text);
    std::string out;
    for (int64_t i = 0; i < bounds.count; ++i) {
      const size_t at = static_cast<size_t>(bounds.start + i * bounds.step);
      if (ascii) {
        out += s->text[at];
      } else {
        AppendUtf8(points[at], out);
      }
    }
    return Value::Of(std::move(out), s->markup);
  }
  budget.ChargeItems(static_cast<size_t>(bounds.count));
  Sequence result;
  result.kind = sequence->kind;
  for (int64_t i = 0; i < bounds.count; ++i) {
    result.items.push_back(sequence->items[static_cast<size_t>(bounds.start + i * bounds.step)]);
  }
  if (result.kind == SequenceKind::kRange) {
    // Unsigned, for ends that lie beyond what an integer can hold.
    const auto times = [](int64_t a, int64_t b) {
      return static_cast<uint64_t>(a) * static_cast<uint64_t>(b);
    };
    result.step = static_cast<int64_t>(times(sequence->step, bounds.step));
    result.start = static_cast<int64_t>(static_cast<uint64_t>(sequence->start) +
                                        times(bounds.start, sequence->step));
    result.stop = static_cast<int64_t>(static_cast<uint64_t>(sequence->start) +
                                       times(bounds.stop, sequence->step));
  }
  return Value::Of(std::move(result));
}

std::optional<Value> Index(const Value& value, int64_t index, Budget& budget) {
  const int64_t length = LengthOf(value);
  if (index < 0) index += length;
  if (index < 0 || index >= length) return std::nullopt;
  if (const Sequence* sequence = value.sequence()) {
    return sequence->items[static_cast<size_t>(index)];
  }
  const String& s = *value.string();
  if (s.length == static_cast<int64_t>(s.text.size())) {
    return Value::Of(std::string(1, s.text[static_cast<size_t>(index)]), s.markup);
  }
  budget.ChargeText(s.text.size());
  size_t position = 0;
  for (int64_t i = 0; i < index; ++i) NextCodePoint(s.text, &position);
  std::string out;
  AppendUtf8(NextCodePoint(s.text, &position), out);
  return Value::Of(std::move(out), s.markup);
}

Value MakeRange(int64_t start, int64_t stop, int64_t step, Budget& budget) {
  if (step == 0) Fail("chat template: range() arg 3 must not be zero");
  // Distances between any two 64-bit integers fit an unsigned one.
  uint64_t count = 0;
  if (step > 0 && start < stop) {
    count = (static_cast<uint64_t>(stop) - static_cast<uint64_t>(start) - 1) /
                static_cast<uint64_t>(step) +
            1;
  } else if (step < 0 && start > stop) {
    count = (static_cast<uint64_t>(start) - static_cast<uint64_t>(stop) - 1) /
                (uint64_t{0} - static_cast<uint64_t>(step)) +
            1;
  }
  if (count > budget.limits().range_items) {
    Fail("chat template: a range of {} numbers is over the limit of {}", count,
         budget.limits().range_items);
  }
  budget.ChargeItems(count);
  Sequence range;
  range.kind = SequenceKind::kRange;
  range.start = start;
  range.stop = stop;
  range.step = step;
  range.items.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    range.items.push_back(Value::Of(
        static_cast<int64_t>(static_cast<uint64_t>(start) + i * static_cast<uint64_t>(step))));
  }
  return Value::Of(std::move(range));
}

}  // namespace loopspec::jinja

#include "jinja/tests.h"

#include <algorithm>

#include "jinja/arguments.h"
#include "jinja/interpreter.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace loopspec::jinja {
namespace {

// A test of the value alone.
template <bool (*kTest)(const Value&)>
bool Plain(Interpreter&, const Value& value, const Arguments& arguments) {
  const Bound bound("the test", arguments, {});
  return kTest(value);
}

bool IsDefined(const Value& v) {
  return !v.IsUndefined();
}
bool IsUndefined(const Value& v) {
  return v.IsUndefined();
}
bool IsNone(const Value& v) {
  return v.IsNone();
}
bool IsBoolean(const Value& v) {
  return v.IsBool();
}
bool IsTrue(const Value& v) {
  return v.IsBool() && v.boolean();
}
bool IsFalse(const Value& v) {
  return v.IsBool() && !v.boolean();
}
bool IsInteger(const Value& v) {
  return v.IsInt();
}
bool IsFloat(const Value& v) {
  return v.IsFloat();
}
bool IsNumber(const Value& v) {
  return v.IsNumber();
}
bool IsString(const Value& v) {
  return v.IsString();
}
bool IsMapping(const Value& v) {
  return v.dict() != nullptr;
}
bool IsIterable(const Value& v) {
  return TryIterate(v) != nullptr || v.as<Loop>() != nullptr;
}
// An undefined value has a length and can be called, the latter only to fail.
bool IsSequence(const Value& v) {
  return v.IsUndefined() || v.IsString() || v.dict() != nullptr ||
         (v.sequence() != nullptr && v.sequence()->Indexable());
}
bool IsCallable(const Value& v) {
  return v.IsUndefined() || (v.object() != nullptr && v.object()->Callable());
}

template <bool kUpper>
bool IsCase(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound("the test", arguments, {});
  return IsCasedText(ToText(value, interpreter.budget()), kUpper);
}

bool Divisible(Interpreter& interpreter, const Value& value, const Value& by, int64_t rest) {
  return Equal(ApplyBinary("%", value, by, interpreter.budget()), Value::Of(rest),
               interpreter.budget());
}

template <int64_t kRest>
bool Parity(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound("the test", arguments, {});
  return Divisible(interpreter, value, Value::Of(int64_t{2}), kRest);
}

bool DivisibleBy(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound("divisibleby", arguments, {"num"}, 1);
  return Divisible(interpreter, value, bound[0], 0);
}

bool SameAs(Interpreter&, const Value& value, const Arguments& arguments) {
  const Bound bound("sameas", arguments, {"other"}, 1);
  return value.Is(bound[0]);
}

bool IsIn(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound("in", arguments, {"seq"}, 1);
  return Contains(bound[0], value, interpreter.budget());
}

enum Comparison { kEq, kNe, kLt, kLe, kGt, kGe };
constexpr std::string_view kOperators[] = {"==", "!=", "<", "<=", ">", ">="};

template <Comparison kOp>
bool Compared(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound("the test", arguments, {"other"}, 1);
  return ApplyComparison(kOperators[kOp], value, bound[0], interpreter.budget());
}

struct Test {
  std::string_view name;
  TestFunction function;
};

constexpr Test kTests[] = {
    {"!=", Compared<kNe>},
    {"<", Compared<kLt>},
    {"<=", Compared<kLe>},
    {"==", Compared<kEq>},
    {">", Compared<kGt>},
    {">=", Compared<kGe>},
    {"boolean", Plain<IsBoolean>},
    {"callable", Plain<IsCallable>},
    {"defined", Plain<IsDefined>},
    {"divisibleby", DivisibleBy},
    {"eq", Compared<kEq>},
    {"equalto", Compared<kEq>},
    {"even", Parity<0>},
    {"false", Plain<IsFalse>},
    {"float", Plain<IsFloat>},
    {"ge", Compared<kGe>},
    {"greaterthan", Compared<kGt>},
    {"gt", Compared<kGt>},
    {"in", IsIn},
    {"integer", Plain<IsInteger>},
    {"iterable", Plain<IsIterable>},
    {"le", Compared<kLe>},
    {"lessthan", Compared<kLt>},
    {"lower", IsCase<false>},
    {"lt", Compared<kLt>},
    {"mapping", Plain<IsMapping>},
    {"ne", Compared<kNe>},
    {"none", Plain<IsNone>},
    {"number", Plain<IsNumber>},
    {"odd", Parity<1>},
    {"sameas", SameAs},
    {"sequence", Plain<IsSequence>},
    {"string", Plain<IsString>},
    {"true", Plain<IsTrue>},
    {"undefined", Plain<IsUndefined>},
    {"upper", IsCase<true>},
};

}  // namespace

TestFunction FindTest(std::string_view name) {
  const Test* it = std::lower_bound(std::begin(kTests), std::end(kTests), name,
                                    [](const Test& t, std::string_view n) { return t.name < n; });
  return it != std::end(kTests) && it->name == name ? it->function : nullptr;
}

bool IsKnownTest(std::string_view name) {
  return FindTest(name) != nullptr;
}

}  // namespace loopspec::jinja

#include "jinja/methods.h"

#include <algorithm>

#include "jinja/arguments.h"
#include "jinja/interpreter.h"
#include "jinja/operators.h"

namespace loopspec::jinja {
namespace {

class Function final : public Object {
 public:
  Function(std::string_view name, MethodFunction function, Value self)
      : name_(name), function_(function), self_(std::move(self)) {}
  std::string_view TypeName() const override {
    return self_.IsUndefined() ? "function" : "builtin_function_or_method";
  }
  std::string Repr(Budget&) const override {
    if (name_ == "dict") return "<class 'dict'>";
    if (self_.IsUndefined()) return fmt::format("<function {}>", name_);
    return fmt::format("<built-in method {} of {} object>", name_, self_.TypeName());
  }
  bool Callable() const override { return true; }
  Value Call(Interpreter& interpreter, const Arguments& arguments) override {
    return function_(interpreter, self_, arguments);
  }
  int Depth() const override { return self_.Depth() + 1; }

 private:
  std::string name_;
  MethodFunction function_;
  Value self_;
};

Value View(SequenceKind kind, const Dict& dict, Budget& budget) {
  budget.ChargeItems(dict.items.size());
  Sequence view;
  view.kind = kind;
  for (const auto& [key, value] : dict.items) {
    view.items.push_back(kind == SequenceKind::kDictKeys     ? key
                         : kind == SequenceKind::kDictValues ? value
                                                             : Value::Tuple({key, value}));
  }
  return Value::Of(std::move(view));
}

Value DictGet(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  if (!arguments.named.empty()) Fail("chat template: dict.get() takes no keyword arguments");
  const Bound bound("dict.get()", arguments, {"key", "default"}, 1);
  const Value* found = self.dict()->Find(bound[0], interpreter.budget());
  return found != nullptr ? *found : bound.Or(1, Value::MakeNone());
}

Value DictItems(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound("dict.items()", arguments, {});
  return View(SequenceKind::kDictItems, *self.dict(), interpreter.budget());
}

Value DictKeys(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound("dict.keys()", arguments, {});
  return View(SequenceKind::kDictKeys, *self.dict(), interpreter.budget());
}

Value DictValues(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound("dict.values()", arguments, {});
  return View(SequenceKind::kDictValues, *self.dict(), interpreter.budget());
}

Value Copy(Interpreter&, const Value& self, const Arguments& arguments) {
  const Bound bound("copy()", arguments, {});
  return self;
}

Value SequenceCount(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound("count()", arguments, {"value"}, 1);
  const std::vector<Value>& items = self.sequence()->items;
  return Value::Of(int64_t{std::count_if(items.begin(), items.end(), [&](const Value& item) {
    return Equal(item, bound[0], interpreter.budget());
  })});
}

Value SequenceIndex(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound("index()", arguments, {"value", "start", "stop"}, 1);
  const std::vector<Value>& items = self.sequence()->items;
  const int64_t length = static_cast<int64_t>(items.size());
  const auto clamp = [&](int64_t i) { return std::max<int64_t>(i < 0 ? i + length : i, 0); };
  const int64_t stop = std::min(clamp(bound.Int(2, INT64_MAX)), length);
  for (int64_t i = clamp(bound.Int(1, 0)); i < stop; ++i) {
    if (Equal(items[static_cast<size_t>(i)], bound[0], interpreter.budget())) return Value::Of(i);
  }
  Fail("chat template: index(): the value is not in the {}", self.TypeName());
}

struct Method {
  std::string_view name;
  MethodFunction function;
};

constexpr Method kDictMethods[] = {{"get", DictGet},
                                   {"items", DictItems},
                                   {"keys", DictKeys},
                                   {"values", DictValues},
                                   {"copy", Copy}};
constexpr Method kSequenceMethods[] = {{"count", SequenceCount}, {"index", SequenceIndex}};

constexpr std::string_view kDictMutators[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view kListMutators[] = {"append", "clear",  "pop",    "reverse",
                                              "insert", "extend", "remove", "sort"};

// Methods of Python's str that no chat template uses.
constexpr std::string_view kLeftOutOfStrings[] = {
    "casefold",    "center",  "expandtabs", "format_map", "isdecimal", "isidentifier", "isnumeric",
    "isprintable", "istitle", "ljust",      "rjust",      "swapcase",  "zfill"};

template <size_t N>
bool IsOneOf(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

template <size_t N>
MethodFunction FindIn(const Method (&methods)[N], std::string_view name) {
  for (const Method& method : methods) {
    if (method.name == name) return method.function;
  }
  return nullptr;
}

template <size_t N>
std::optional<Value> Refused(const std::string_view (&names)[N], const Value& self,
                             std::string_view name) {
  if (!IsOneOf(names, name)) return std::nullopt;
  return Value::MakeUndefined(
      fmt::format("access to attribute '{}' of '{}' object is unsafe", name, self.TypeName()));
}

}  // namespace

Value MakeFunction(std::string_view name, MethodFunction function, Value self) {
  return Value::Of(std::make_shared<Function>(name, function, std::move(self)));
}

std::optional<Value> FindMethod(const Value& self, std::string_view name) {
  MethodFunction function = nullptr;
  if (self.IsString()) {
    if (IsOneOf(kLeftOutOfStrings, name)) {
      return Value::MakeUndefined(fmt::format("the method '{}' of str is not supported", name));
    }
    function = FindStringMethod(name);
  } else if (self.dict() != nullptr) {
    if (std::optional<Value> refused = Refused(kDictMutators, self, name)) return refused;
    function = FindIn(kDictMethods, name);
  } else if (const Sequence* sequence = self.sequence()) {
    if (sequence->kind == SequenceKind::kList) {
      if (std::optional<Value> refused = Refused(kListMutators, self, name)) return refused;
      if (name == "copy") function = Copy;
    }
    if (function == nullptr && sequence->Indexable()) function = FindIn(kSequenceMethods, name);
  }
  if (function == nullptr) return std::nullopt;
  return MakeFunction(name, function, self);
}

}  // namespace loopspec::jinja

// Expressions.
#include "jinja/filters.h"
#include "jinja/interpreter.h"
#include "jinja/methods.h"
#include "jinja/operators.h"
#include "jinja/repr.h"
#include "jinja/tests.h"

namespace loopspec::jinja {
namespace {

// How jinja2 names the owner of a missing attribute.
std::string OwnerName(const Value& object) {
  return object.IsNone() ? "None" : fmt::format("{} object", object.TypeName());
}

Value MissingAttribute(const Value& object, std::string_view name) {
  return Value::MakeUndefined(fmt::format("'{}' has no attribute '{}'", OwnerName(object), name));
}

// What Python's getattr finds.
std::optional<Value> FindAttribute(const Value& object, std::string_view name) {
  if (Object* o = object.object()) return o->Attribute(name);
  return FindMethod(object, name);
}

}  // namespace

Value Interpreter::Charged(Value value) {
  if (const String* s = value.string()) {
    budget_.ChargeText(s->text.size());
  } else if (const Sequence* sequence = value.sequence()) {
    budget_.ChargeItems(sequence->items.size());
  }
  return value;
}

Value Interpreter::Evaluate(const Expression& e, const ScopePtr& scope) {
  budget_.Charge(1);
  const Budget::Level level(budget_);
  switch (e.kind) {
    case ExpressionKind::kConstant:
      return e.constant;
    case ExpressionKind::kName:
    case ExpressionKind::kNamespaceRef:
      return EvaluateName(e, *scope);
    case ExpressionKind::kTuple:
      return Value::Tuple(EvaluateAll(e.operands, scope));
    case ExpressionKind::kList:
      return Value::List(EvaluateAll(e.operands, scope));
    case ExpressionKind::kDict:
      return EvaluateDict(e, scope);
    case ExpressionKind::kConditional:
      return EvaluateConditional(e, scope);
    case ExpressionKind::kOr: {
      Value left = Operand(e, 0, scope);
      return left.Truthy() ? left : Operand(e, 1, scope);
    }
    case ExpressionKind::kAnd: {
      Value left = Operand(e, 0, scope);
      return left.Truthy() ? Operand(e, 1, scope) : left;
    }
    case ExpressionKind::kNot:
      return Value::Of(!Operand(e, 0, scope).Truthy());
    case ExpressionKind::kNegate:
      return Negate(Operand(e, 0, scope));
    case ExpressionKind::kPositive:
      return Positive(Operand(e, 0, scope));
    case ExpressionKind::kCompare:
      return EvaluateCompare(e, scope);
    case ExpressionKind::kBinary: {
      const Value left = Operand(e, 0, scope);
      return ApplyBinary(e.operators[0], left, Operand(e, 1, scope), budget_);
    }
    case ExpressionKind::kConcat:
      return EvaluateConcat(e, scope);
    case ExpressionKind::kAttribute:
      return GetAttribute(Operand(e, 0, scope), e.attribute);
    case ExpressionKind::kSubscript: {
      const Value object = Operand(e, 0, scope);
      return GetItem(object, Operand(e, 1, scope));
    }
    case ExpressionKind::kSlice:
      return EvaluateSlice(e, scope);
    case ExpressionKind::kCall: {
      const Value callee = Operand(e, 0, scope);
      return Charged(Call(callee, EvaluateArguments(e.arguments, scope)));
    }
    case ExpressionKind::kFilter:
      return EvaluateFilter(e, scope, nullptr);
    case ExpressionKind::kTest: {
      const Value value = Operand(e, 0, scope);
      return Value::Of(CallTest(e.name, value, EvaluateArguments(e.arguments, scope)));
    }
  }
  return Value();
}

Value Interpreter::EvaluateName(const Expression& e, const Scope& scope) {
  const Value* found = scope.Find(e.name);
  return found != nullptr ? *found : Value::MakeUndefined(fmt::format("'{}' is undefined", e.name));
}

std::vector<Value> Interpreter::EvaluateAll(const std::vector<ExpressionPtr>& items,
                                            const ScopePtr& scope) {
  std::vector<Value> values;
  values.reserve(items.size());
  for (const ExpressionPtr& item : items) values.push_back(Evaluate(*item, scope));
  return values;
}

Value Interpreter::EvaluateDict(const Expression& e, const ScopePtr& scope) {
  Dict dict;
  for (size_t i = 0; i < e.operands.size(); i += 2) {
    Value key = Operand(e, i, scope);
    dict.Set(std::move(key), Operand(e, i + 1, scope), budget_);
  }
  return Value::Of(std::move(dict));
}

Value Interpreter::EvaluateConditional(const Expression& e, const ScopePtr& scope) {
  if (Operand(e, 0, scope).Truthy()) return Operand(e, 1, scope);
  if (e.operands[2] != nullptr) return Operand(e, 2, scope);
  return Value::MakeUndefined(fmt::format(
      "the inline if-expression on line {} evaluated to false and no else section was defined.",
      e.line));
}

Value Interpreter::EvaluateCompare(const Expression& e, const ScopePtr& scope) {
  Value left = Operand(e, 0, scope);
  for (size_t i = 0; i < e.operators.size(); ++i) {
    Value right = Operand(e, i + 1, scope);
    if (!ApplyComparison(e.operators[i], left, right, budget_)) return Value::Of(false);
    left = std::move(right);
  }
  return Value::Of(true);
}

Value Interpreter::EvaluateConcat(const Expression& e, const ScopePtr& scope) {
  std::string text;
  for (size_t i = 0; i < e.operands.size(); ++i) Print(Operand(e, i, scope), &text);
  return Value::Of(std::move(text));
}

Value Interpreter::EvaluateSlice(const Expression& e, const ScopePtr& scope) {
  const auto part = [&](size_t i) {
    return e.operands[i] == nullptr ? Value::MakeNone() : Operand(e, i, scope);
  };
  const Value value = Operand(e, 0, scope), start = part(1), stop = part(2);
  return Slice(value, start, stop, part(3), budget_);
}

Value Interpreter::EvaluateFilter(const Expression& e, const ScopePtr& scope, const Value* block) {
  const Budget::Level level(budget_);
  const Expression* inner = e.operands[0].get();
  Value value;
  if (inner != nullptr && (block == nullptr || inner->kind != ExpressionKind::kFilter)) {
    value = Evaluate(*inner, scope);
  } else if (inner != nullptr) {
    value = EvaluateFilter(*inner, scope, block);  // the filters of a block, innermost first
  } else {
    value = *block;
  }
  return CallFilter(e.name, value, EvaluateArguments(e.arguments, scope));
}

Arguments Interpreter::EvaluateArguments(const CallArguments& arguments, const ScopePtr& scope) {
  Arguments result;
  result.positional = EvaluateAll(arguments.positional, scope);
  for (const auto& [name, value] : arguments.named) {
    result.named.emplace_back(name, Evaluate(*value, scope));
  }
  if (arguments.star != nullptr) {
    for (Value& value : Collect(Evaluate(*arguments.star, scope), budget_)) {
      result.positional.push_back(std::move(value));
    }
  }
  if (arguments.double_star != nullptr) {
    const Value named = Evaluate(*arguments.double_star, scope);
    if (named.dict() == nullptr) {
      Fail("chat template: argument after ** must be a mapping, not {}", named.TypeName());
    }
    budget_.ChargeItems(named.dict()->items.size());
    for (const auto& [key, value] : named.dict()->items) {
      if (!key.IsString()) Fail("chat template: keywords must be strings");
      result.named.emplace_back(key.text(), value);
    }
  }
  return result;
}

Value Interpreter::Call(const Value& callee, const Arguments& arguments) {
  budget_.Charge(1);
  const Budget::Level level(budget_);
  RequireDefined(callee);
  if (callee.object() == nullptr) {
    Fail("chat template: '{}' object is not callable", callee.TypeName());
  }
  return callee.object()->Call(*this, arguments);
}

Value Interpreter::CallFilter(const std::string& name, const Value& value,
                              const Arguments& arguments) {
  const Budget::Level level(budget_);
  const FilterFunction filter = FindFilter(name);
  if (filter == nullptr && IsLeftOutFilter(name)) {
    Fail("chat template: the filter '{}' of jinja2 is not supported", name);
  }
  if (filter == nullptr) Fail("chat template: no filter named '{}'", name);
  return Charged(filter(*this, value, arguments));
}

bool Interpreter::CallTest(const std::string& name, const Value& value,
                           const Arguments& arguments) {
  const TestFunction test = FindTest(name);
  if (test == nullptr) Fail("chat template: no test named '{}'", name);
  return test(*this, value, arguments);
}

Value Interpreter::GetAttribute(const Value& object, std::string_view name) {
  // Python's own protocols may ask an undefined value, so that it answers these without failing.
  if (object.IsUndefined() && name.starts_with("__") && name.ends_with("__")) return object;
  RequireDefined(object);
  if (std::optional<Value> found = FindAttribute(object, name)) return *std::move(found);
  if (const Dict* dict = object.dict()) {
    if (const Value* item = dict->Find(name)) return *item;
  }
  return MissingAttribute(object, name);
}

Value Interpreter::GetItem(const Value& object, const Value& key) {
  RequireDefined(object);
  if (const Dict* dict = object.dict()) {
    const Value* item = Hashable(key) ? dict->Find(key, budget_) : nullptr;
    if (item != nullptr) return *item;
  } else if (key.integer() && (object.IsString() ||
                               (object.sequence() != nullptr && object.sequence()->Indexable()))) {
    if (std::optional<Value> item = Index(object, *key.integer(), budget_)) return *std::move(item);
  }
  if (key.IsString()) {
    if (std::optional<Value> found = FindAttribute(object, key.text())) return *std::move(found);
    return MissingAttribute(object, key.text());
  }
  return Value::MakeUndefined(
      fmt::format("{} has no element {}", OwnerName(object), Repr(key, budget_)));
}

}  // namespace loopspec::jinja

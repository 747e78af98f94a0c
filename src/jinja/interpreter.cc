#include "jinja/interpreter.h"

#include <algorithm>
#include <functional>

#include "jinja/filters.h"
#include "jinja/globals.h"
#include "jinja/methods.h"
#include "jinja/operators.h"
#include "jinja/repr.h"
#include "jinja/tests.h"

namespace loopspec::jinja {
namespace {

class MacroObject final : public Object {
 public:
  MacroObject(const Macro& macro, std::shared_ptr<Scope> scope)
      : macro_(macro), scope_(std::move(scope)) {}
  std::string_view TypeName() const override { return "Macro"; }
  std::string Repr(Budget&) const override { return "<Macro " + ReprText(macro_.name) + ">"; }
  bool Callable() const override { return true; }
  Value Call(Interpreter& interpreter, const Arguments& arguments) override {
    return interpreter.CallMacro(macro_, scope_, arguments);
  }
  std::optional<Value> Attribute(std::string_view name) override {
    if (name == "name") return Value::Of(macro_.name);
    if (name == "catch_kwargs") return Value::Of(macro_.uses_kwargs);
    if (name == "catch_varargs") return Value::Of(macro_.uses_varargs);
    if (name == "caller") return Value::Of(macro_.uses_caller);
    if (name == "arguments") {
      std::vector<Value> names;
      for (const std::string& parameter : macro_.parameters) names.push_back(Value::Of(parameter));
      return Value::Tuple(std::move(names));
    }
    return std::nullopt;
  }

 private:
  const Macro& macro_;
  std::shared_ptr<Scope> scope_;
};

std::shared_ptr<Scope> Inner(const std::shared_ptr<Scope>& parent) {
  return std::make_shared<Scope>(Scope{parent, {}});
}

// The items of a loop with a condition, tested one by one as they are asked for.
class ConditionalIterator final : public Iterator {
 public:
  using Test = std::function<bool(const Value&)>;
  ConditionalIterator(std::shared_ptr<Iterator> source, Test test)
      : Iterator("generator"), source_(std::move(source)), test_(std::move(test)) {}
  std::optional<Value> Next() override {
    while (std::optional<Value> item = source_->Next()) {
      if (test_(*item)) return item;
    }
    return std::nullopt;
  }
  int Depth() const override { return source_->Depth() + 1; }

 private:
  std::shared_ptr<Iterator> source_;
  Test test_;
};

}  // namespace

const Value* Scope::Find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
    for (const auto& [key, value] : scope->variables) {
      if (key == name) return &value;
    }
  }
  return nullptr;
}

void Scope::Set(std::string_view name, Value value) {
  for (auto& [key, old] : variables) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

Interpreter::Interpreter(const Limits& limits, int64_t now_unix)
    : budget_(limits), now_unix_(now_unix) {}

Interpreter::~Interpreter() {
  // All of them are held here, so that clearing one never frees a chain of others.
  for (const std::shared_ptr<Object>& object : kept_) object->Clear();
  for (const ScopePtr& scope : kept_scopes_) {
    const auto variables = std::exchange(scope->variables, {});
  }
}

std::string Interpreter::Render(const Body& body, const Dict& variables) {
  root_ = Inner(nullptr);
  for (auto& [name, value] : Globals()) root_->Set(name, std::move(value));
  for (const auto& [name, value] : variables.items) root_->Set(name.text(), value);
  // What a template sets shadows its variables; it cannot change them for a macro that is defined
  // outside.
  std::string out;
  Run(body, root_, &out);
  return out;
}

void Interpreter::Append(std::string_view text, std::string* out) {
  budget_.CheckText(out->size() + text.size());
  budget_.ChargeText(text.size());
  out->append(text);
}

void Interpreter::Print(const Value& value, std::string* out) {
  if (value.IsString()) {
    Append(value.text(), out);
  } else {
    Append(ToText(value, budget_), out);
  }
}

Interpreter::Flow Interpreter::Run(const Body& body, const ScopePtr& scope, std::string* out) {
  const Budget::Level level(budget_);
  for (const std::unique_ptr<Statement>& statement : body) {
    const Flow flow = RunStatement(*statement, scope, out);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::RunStatement(const Statement& statement, const ScopePtr& scope,
                                            std::string* out) {
  budget_.Charge(1);
  switch (statement.kind) {
    case StatementKind::kText:
      Append(statement.text, out);
      return Flow::kNormal;
    case StatementKind::kPrint:
      Print(Evaluate(*statement.value, scope), out);
      return Flow::kNormal;
    case StatementKind::kIf:
      return RunIf(statement, scope, out);
    case StatementKind::kFor:
      return RunFor(statement, scope, Evaluate(*statement.value, scope), 0, out);
    case StatementKind::kSet:
      Assign(*statement.target, Evaluate(*statement.value, scope), *scope);
      return Flow::kNormal;
    case StatementKind::kSetBlock:
      return RunSetBlock(statement, scope);
    case StatementKind::kMacro:
      scope->Set(statement.macro.name, MakeMacro(statement.macro, scope));
      return Flow::kNormal;
    case StatementKind::kCallBlock:
      RunCallBlock(statement, scope, out);
      return Flow::kNormal;
    case StatementKind::kFilterBlock:
      return RunFilterBlock(statement, scope, out);
    case StatementKind::kWith:
      return RunWith(statement, scope, out);
    case StatementKind::kScope:
      return Run(statement.body, Inner(scope), out);
    case StatementKind::kBlock:
      return Run(statement.body, Inner(root_), out);
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
    case StatementKind::kUnsupported:
      Fail("chat template line {}: {}", statement.line, statement.text);
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::RunIf(const Statement& statement, const ScopePtr& scope,
                                     std::string* out) {
  for (const auto& [condition, body] : statement.branches) {
    if (Evaluate(*condition, scope).Truthy()) return Run(body, scope, out);
  }
  return Run(statement.otherwise, scope, out);
}

std::shared_ptr<Iterator> Interpreter::FilteredSource(const Statement& statement,
                                                      const ScopePtr& scope,
                                                      std::shared_ptr<Iterator> source) {
  if (statement.condition == nullptr) return source;
  return std::make_shared<ConditionalIterator>(
      std::move(source), [this, &statement, scope](const Value& item) {
        budget_.Charge(1);
        const ScopePtr inner = Inner(scope);
        Assign(*statement.target, item, *inner);
        return Evaluate(*statement.condition, inner).Truthy();
      });
}

Interpreter::Flow Interpreter::RunFor(const Statement& statement, const ScopePtr& scope,
                                      const Value& iterable, int64_t depth0, std::string* out) {
  std::shared_ptr<Iterator> source = FilteredSource(statement, scope, Iterate(iterable));
  std::shared_ptr<Loop> loop;
  if (statement.uses_loop) {
    loop =
        std::make_shared<Loop>(*this, statement, scope,
                               statement.condition == nullptr ? iterable : Value(), source, depth0);
  }
  bool finished_one = false;
  ScopePtr inner;
  while (true) {
    const std::optional<Value> item = loop != nullptr ? loop->Advance() : source->Next();
    if (!item) break;
    budget_.Charge(1);
    // Every round starts with fresh variables; only a macro that remembers them needs the old ones
    // kept.
    if (inner == nullptr || inner.use_count() > 1) {
      inner = Inner(scope);
    } else {
      inner->variables.clear();
    }
    if (loop != nullptr) inner->Set("loop", Value::Of(std::shared_ptr<Object>(loop)));
    Assign(*statement.target, *item, *inner);
    const Flow flow = Run(statement.body, inner, out);
    if (flow == Flow::kBreak) break;
    // As jinja2 has it: a round that was continued or broken out of does not keep the else part
    // from running.
    finished_one |= flow == Flow::kNormal;
  }
  return finished_one ? Flow::kNormal : Run(statement.otherwise, Inner(scope), out);
}

std::string Interpreter::CallRecursiveLoop(const Statement& statement,
                                           const std::shared_ptr<Scope>& scope,
                                           const Value& iterable, int64_t depth0) {
  const Budget::Level level(budget_);
  std::string out;
  RunFor(statement, scope, iterable, depth0, &out);
  return out;
}

Interpreter::Flow Interpreter::RunSetBlock(const Statement& statement, const ScopePtr& scope) {
  std::string text;
  const Flow flow = Run(statement.body, Inner(scope), &text);
  if (flow != Flow::kNormal) return flow;
  Value value = Value::Of(std::move(text));
  if (statement.filter != nullptr) value = EvaluateFilter(*statement.filter, scope, &value);
  Assign(*statement.target, value, *scope);
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::RunFilterBlock(const Statement& statement, const ScopePtr& scope,
                                              std::string* out) {
  std::string text;
  const Flow flow = Run(statement.body, Inner(scope), &text);
  if (flow != Flow::kNormal) return flow;
  const Value block = Value::Of(std::move(text));
  Print(EvaluateFilter(*statement.filter, scope, &block), out);
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::RunWith(const Statement& statement, const ScopePtr& scope,
                                       std::string* out) {
  const ScopePtr inner = Inner(scope);
  for (const auto& [target, value] : statement.assignments) {
    Assign(*target, Evaluate(*value, scope), *inner);
  }
  return Run(statement.body, inner, out);
}

Value Interpreter::MakeMacro(const Macro& macro, const ScopePtr& scope) {
  // A scope holds the macro, which holds the scope.
  budget_.Charge(20);
  if (kept_scopes_.empty() || kept_scopes_.back() != scope) kept_scopes_.push_back(scope);
  return Value::Of(std::shared_ptr<Object>(std::make_shared<MacroObject>(macro, scope)));
}

void Interpreter::RunCallBlock(const Statement& statement, const ScopePtr& scope,
                               std::string* out) {
  const Expression& call = *statement.value;
  const Value callee = Evaluate(*call.operands[0], scope);
  Arguments arguments = EvaluateArguments(call.arguments, scope);
  arguments.named.emplace_back("caller", MakeMacro(statement.macro, scope));
  Print(Call(callee, arguments), out);
}

Value Interpreter::CallMacro(const Macro& macro, const ScopePtr& scope, const Arguments& given) {
  const Budget::Level level(budget_);
  const ScopePtr inner = Inner(scope);
  std::vector<std::pair<std::string, Value>> named = given.named;
  const auto take_named = [&](std::string_view name) -> std::optional<Value> {
    const auto it = std::find_if(named.begin(), named.end(),
                                 [&](const auto& item) { return item.first == name; });
    if (it == named.end()) return std::nullopt;
    Value value = std::move(it->second);
    named.erase(it);
    return value;
  };
  const size_t count = macro.parameters.size(), first_default = count - macro.defaults.size();
  for (size_t i = 0; i < count; ++i) {
    const std::string& name = macro.parameters[i];
    std::optional<Value> value;
    if (i < given.positional.size()) {
      value = given.positional[i];
    } else {
      value = take_named(name);
    }
    if (!value && i >= first_default) value = Evaluate(*macro.defaults[i - first_default], inner);
    if (!value) {
      value = Value::MakeUndefined(fmt::format("parameter '{}' was not provided", name));
    }
    inner->Set(name, *std::move(value));
  }
  // A parameter of such a name is an ordinary one.
  const auto takes = [&](bool used, std::string_view name) {
    return used && std::find(macro.parameters.begin(), macro.parameters.end(), name) ==
                       macro.parameters.end();
  };
  if (takes(macro.uses_caller, "caller")) {
    std::optional<Value> caller = take_named("caller");
    inner->Set("caller",
               caller && !caller->IsNone() ? *caller : Value::MakeUndefined("No caller defined"));
  }
  if (takes(macro.uses_kwargs, "kwargs")) {
    Dict rest;
    for (auto& [name, value] : named) rest.Set(name, std::move(value));
    inner->Set("kwargs", Value::Of(std::move(rest)));
  } else if (!named.empty()) {
    Fail("chat template: macro '{}' takes no keyword argument '{}'", macro.name, named[0].first);
  }
  if (takes(macro.uses_varargs, "varargs")) {
    std::vector<Value> rest;
    for (size_t i = count; i < given.positional.size(); ++i) rest.push_back(given.positional[i]);
    inner->Set("varargs", Value::Tuple(std::move(rest)));
  } else if (given.positional.size() > count) {
    Fail("chat template: macro '{}' takes not more than {} argument(s)", macro.name, count);
  }
  std::string out;
  Run(macro.body, inner, &out);
  return Value::Of(std::move(out));
}

void Interpreter::Assign(const Expression& target, const Value& value, Scope& scope) {
  if (target.kind == ExpressionKind::kName) {
    scope.Set(target.name, value);
  } else if (target.kind == ExpressionKind::kNamespaceRef) {
    const Value* object = scope.Find(target.name);
    Namespace* space = object == nullptr ? nullptr : object->as<Namespace>();
    if (space == nullptr) {
      Fail("chat template line {}: cannot assign attribute on non-namespace object '{}'",
           target.line, target.name);
    }
    space->attributes.Set(target.attribute, value);
  } else {
    const std::vector<Value> items = Collect(value, budget_);
    if (items.size() != target.operands.size()) {
      Fail("chat template line {}: found {} values to unpack, expected {}", target.line,
           items.size(), target.operands.size());
    }
    for (size_t i = 0; i < items.size(); ++i) Assign(*target.operands[i], items[i], scope);
  }
}

}  // namespace loopspec::jinja

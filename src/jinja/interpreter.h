// Walks a parsed template and writes its text.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/ast.h"
#include "jinja/budget.h"
#include "jinja/value.h"

namespace loopspec::jinja {

// Variables of a template, loop round, macro call or block; a name is looked for outwards.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string, Value>> variables;

  const Value* Find(std::string_view name) const;
  void Set(std::string_view name, Value value);
};

// What `loop` is inside of a for.
class Loop final : public Object {
 public:
  Loop(Interpreter& interpreter, const Statement& statement, std::shared_ptr<Scope> scope,
       Value iterable, std::shared_ptr<Iterator> source, int64_t depth0);
  std::optional<Value> Advance();

  std::string_view TypeName() const override { return "LoopContext"; }
  std::string Repr(Budget& budget) const override;
  std::optional<Value> Attribute(std::string_view name) override;
  std::optional<int64_t> Length() override;
  bool Callable() const override { return true; }
  Value Call(Interpreter& interpreter, const Arguments& arguments) override;
  Value Cycle(const Arguments& arguments) const;
  Value Changed(const Arguments& arguments);
  int Depth() const override { return depth_; }
  void Clear() override { last_changed_.reset(); }

 private:
  const std::optional<Value>& Peek();

  Interpreter& interpreter_;
  const Statement& statement_;
  std::shared_ptr<Scope> scope_;  // around the loop, for recursion
  Value iterable_;                // what tells its length; undefined for a filtered loop
  std::shared_ptr<Iterator> source_;
  int depth_;       // of the nesting of values, see Value::Depth
  int64_t depth0_;  // of the recursion
  int64_t index0_ = -1;
  std::optional<int64_t> length_;
  bool peeked_ = false;
  std::optional<Value> after_, current_, before_;
  std::optional<Value> last_changed_;
};

class Interpreter {
 public:
  Interpreter(const Limits& limits, int64_t now_unix);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  std::string Render(const Body& body, const Dict& variables);

  Budget& budget() { return budget_; }
  int64_t now_unix() const { return now_unix_; }
  Value Call(const Value& callee, const Arguments& arguments);
  Value CallFilter(const std::string& name, const Value& value, const Arguments& arguments);
  bool CallTest(const std::string& name, const Value& value, const Arguments& arguments);
  Value GetAttribute(const Value& object, std::string_view name);  // object.name
  Value GetItem(const Value& object, const Value& key);            // object[key]
  Value CallMacro(const Macro& macro, const std::shared_ptr<Scope>& scope, const Arguments& given);
  // The rounds of a for over `iterable`; the text they write.
  std::string CallRecursiveLoop(const Statement& statement, const std::shared_ptr<Scope>& scope,
                                const Value& iterable, int64_t depth0);
  // What can hold itself (a namespace in its own list) is emptied when the rendering ends, so that
  // nothing leaks.
  void KeepUntilEnd(std::shared_ptr<Object> object) { kept_.push_back(std::move(object)); }

 private:
  friend class Loop;
  enum class Flow { kNormal, kBreak, kContinue };
  using ScopePtr = std::shared_ptr<Scope>;

  Flow Run(const Body& body, const ScopePtr& scope, std::string* out);
  Flow RunStatement(const Statement& statement, const ScopePtr& scope, std::string* out);
  Flow RunIf(const Statement& statement, const ScopePtr& scope, std::string* out);
  Flow RunFor(const Statement& statement, const ScopePtr& scope, const Value& iterable,
              int64_t depth0, std::string* out);
  Flow RunSetBlock(const Statement& statement, const ScopePtr& scope);
  Flow RunFilterBlock(const Statement& statement, const ScopePtr& scope, std::string* out);
  Flow RunWith(const Statement& statement, const ScopePtr& scope, std::string* out);
  void RunCallBlock(const Statement& statement, const ScopePtr& scope, std::string* out);
  Value MakeMacro(const Macro& macro, const ScopePtr& scope);
  void Print(const Value& value, std::string* out);
  void Append(std::string_view text, std::string* out);
  void Assign(const Expression& target, const Value& value, Scope& scope);
  std::shared_ptr<Iterator> FilteredSource(const Statement& statement, const ScopePtr& scope,
                                           std::shared_ptr<Iterator> source);

  Value Evaluate(const Expression& expression, const ScopePtr& scope);
  Value EvaluateName(const Expression& expression, const Scope& scope);
  Value EvaluateDict(const Expression& expression, const ScopePtr& scope);
  Value EvaluateConditional(const Expression& expression, const ScopePtr& scope);
  Value EvaluateCompare(const Expression& expression, const ScopePtr& scope);
  Value EvaluateConcat(const Expression& expression, const ScopePtr& scope);
  Value EvaluateSlice(const Expression& expression, const ScopePtr& scope);
  Value EvaluateFilter(const Expression& expression, const ScopePtr& scope, const Value* block);
  std::vector<Value> EvaluateAll(const std::vector<ExpressionPtr>& items, const ScopePtr& scope);
  Arguments EvaluateArguments(const CallArguments& arguments, const ScopePtr& scope);
  Value Operand(const Expression& expression, size_t i, const ScopePtr& scope) {
    return Evaluate(*expression.operands[i], scope);
  }
  // Makes the work of an operation count by the size of what it made.
  Value Charged(Value value);

  Budget budget_;
  int64_t now_unix_;
  ScopePtr root_;
  std::vector<std::shared_ptr<Object>> kept_;
  std::vector<ScopePtr> kept_scopes_;  // that macros hold on to
};

}  // namespace loopspec::jinja

// The `loop` variable.
#include "jinja/arguments.h"
#include "jinja/interpreter.h"
#include "jinja/methods.h"

namespace loopspec::jinja {
namespace {

Value CallCycle(Interpreter&, const Value& self, const Arguments& arguments) {
  return self.as<Loop>()->Cycle(arguments);
}

Value CallChanged(Interpreter&, const Value& self, const Arguments& arguments) {
  return self.as<Loop>()->Changed(arguments);
}

}  // namespace

Loop::Loop(Interpreter& interpreter, const Statement& statement, std::shared_ptr<Scope> scope,
           Value iterable, std::shared_ptr<Iterator> source, int64_t depth0)
    : interpreter_(interpreter),
      statement_(statement),
      scope_(std::move(scope)),
      iterable_(std::move(iterable)),
      source_(std::move(source)),
      depth_(source_->Depth() + 1),
      depth0_(depth0) {
  if (depth_ > kMaxValueDepth) Fail("chat template: loops over loops nested too deep");
}

std::optional<Value> Loop::Advance() {
  std::optional<Value> next = peeked_ ? std::move(after_) : source_->Next();
  peeked_ = false;
  after_.reset();
  if (!next) return next;
  ++index0_;
  before_ = std::exchange(current_, next);
  return next;
}

const std::optional<Value>& Loop::Peek() {
  if (!peeked_) {
    after_ = source_->Next();
    peeked_ = true;
  }
  return after_;
}

std::optional<int64_t> Loop::Length() {
  if (length_) return length_;
  if (!iterable_.IsUndefined()) length_ = TryLength(iterable_);
  if (!length_) {
    // A generator tells its length only by being read to the end.
    std::vector<Value> rest;
    while (std::optional<Value> item = source_->Next()) {
      interpreter_.budget().Charge(1);
      rest.push_back(*std::move(item));
    }
    length_ = static_cast<int64_t>(rest.size()) + index0_ + 1 + (peeked_ && after_ ? 1 : 0);
    source_ = Iterate(Value::List(std::move(rest)));
  }
  return length_;
}

std::string Loop::Repr(Budget&) const {
  return fmt::format("<LoopContext {}/{}>", index0_ + 1, const_cast<Loop*>(this)->Length().value());
}

std::optional<Value> Loop::Attribute(std::string_view name) {
  if (name == "index0") return Value::Of(index0_);
  if (name == "index") return Value::Of(index0_ + 1);
  if (name == "first") return Value::Of(index0_ == 0);
  if (name == "last") return Value::Of(!Peek().has_value());
  if (name == "length") return Value::Of(*Length());
  if (name == "revindex") return Value::Of(*Length() - index0_);
  if (name == "revindex0") return Value::Of(*Length() - index0_ - 1);
  if (name == "depth") return Value::Of(depth0_ + 1);
  if (name == "depth0") return Value::Of(depth0_);
  if (name == "previtem") {
    return before_ ? *before_ : Value::MakeUndefined("there is no previous item");
  }
  if (name == "nextitem") {
    return Peek() ? *Peek() : Value::MakeUndefined("there is no next item");
  }
  if (name == "cycle") return MakeFunction(name, CallCycle, Value::Of(shared_from_this()));
  if (name == "changed") return MakeFunction(name, CallChanged, Value::Of(shared_from_this()));
  return std::nullopt;
}

Value Loop::Call(Interpreter& interpreter, const Arguments& arguments) {
  const Bound bound("loop()", arguments, {"iterable"}, 1);
  if (!statement_.recursive) {
    Fail("chat template: the loop must have the 'recursive' marker to be called recursively");
  }
  return Value::Of(interpreter.CallRecursiveLoop(statement_, scope_, bound[0], depth0_ + 1));
}

Value Loop::Cycle(const Arguments& arguments) const {
  if (!arguments.named.empty()) Fail("chat template: cycle() takes no keyword arguments");
  const std::vector<Value>& items = arguments.positional;
  if (items.empty()) Fail("chat template: no items for cycling given");
  return items[static_cast<size_t>(index0_) % items.size()];
}

Value Loop::Changed(const Arguments& arguments) {
  if (!arguments.named.empty()) Fail("chat template: changed() takes no keyword arguments");
  Value values = Value::Tuple(arguments.positional);
  if (last_changed_ && Equal(*last_changed_, values, interpreter_.budget())) {
    return Value::Of(false);
  }
  // What is remembered may hold this loop.
  if (!last_changed_) interpreter_.KeepUntilEnd(shared_from_this());
  last_changed_ = std::move(values);
  return Value::Of(true);
}

}  // namespace loopspec::jinja

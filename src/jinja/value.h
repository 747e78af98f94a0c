// The values of the template language: Python's, as far as templates can meet them.
// Containers are immutable once made, as in jinja2's immutable sandbox; what changes (namespaces,
// loops, generators) is an Object.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/json_fwd.h"
#include "jinja/budget.h"

namespace loopspec::jinja {

class Value;
class Interpreter;
struct Dict;
struct Object;
struct Sequence;

struct String {
  std::string text;  // valid UTF-8
  int64_t length;    // in code points
  bool markup;       // made by `safe` or `escape`: adding plain text to it escapes that text
};

// What a missing name, attribute or item gives: prints as nothing, counts as false, fails when used
// further.
struct Undefined {
  std::shared_ptr<const std::string> message;  // what that failure says
};

struct None {};

class Value {
 public:
  Value() = default;  // undefined
  static Value MakeUndefined(std::string message);
  static Value MakeNone() { return Value(None{}); }
  static Value Of(bool v) { return Value(v); }
  static Value Of(int64_t v) { return Value(v); }
  static Value Of(double v) { return Value(v); }
  static Value Of(std::string text, bool markup = false);
  static Value Of(const char* text) { return Of(std::string(text)); }
  static Value Of(std::string_view text) { return Of(std::string(text)); }
  static Value List(std::vector<Value> items);
  static Value Tuple(std::vector<Value> items);
  static Value Of(Sequence sequence);
  static Value Of(Dict dict);
  static Value Of(std::shared_ptr<Object> object) { return Value(std::move(object)); }
  static Value FromJson(const OrderedJson& json);

  bool IsUndefined() const { return std::holds_alternative<Undefined>(data_); }
  bool IsNone() const { return std::holds_alternative<None>(data_); }
  bool IsBool() const { return std::holds_alternative<bool>(data_); }
  bool IsInt() const { return std::holds_alternative<int64_t>(data_); }  // not for True and False
  bool IsFloat() const { return std::holds_alternative<double>(data_); }
  bool IsString() const { return string() != nullptr; }
  bool IsNumber() const { return IsBool() || IsInt() || IsFloat(); }

  // Null when the value is of another kind.
  const String* string() const;
  const Sequence* sequence() const;
  const Dict* dict() const;
  Object* object() const;
  std::shared_ptr<Object> shared_object() const;
  template <typename T>
  T* as() const {
    return dynamic_cast<T*>(object());
  }

  const std::string& text() const { return string()->text; }
  bool boolean() const { return std::get<bool>(data_); }
  std::optional<int64_t> integer() const;  // of an int or a bool
  std::optional<double> number() const;    // of an int, bool or float
  std::string undefined_message() const;

  bool Truthy() const;
  // Python's type name, for messages: 'str', 'dict', 'NoneType' ...
  std::string_view TypeName() const;
  // How deep containers are nested; making a value nested too deep fails, so that freeing one
  // cannot exhaust the stack.
  int Depth() const;
  // Identity, as Python's `is` sees it for the values where that can be told.
  bool Is(const Value& other) const;

 private:
  using Data = std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const String>,
                            std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>,
                            std::shared_ptr<Object>>;
  template <typename T>
  explicit Value(T data) : data_(std::move(data)) {}

  Data data_;
};

enum class SequenceKind { kList, kTuple, kRange, kDictKeys, kDictValues, kDictItems };

struct Sequence {
  SequenceKind kind = SequenceKind::kList;
  std::vector<Value> items;
  int64_t start = 0, stop = 0, step = 1;  // of a range, for printing it
  int depth = 1;                          // filled by Value::Of

  // Views of a dictionary cannot be indexed.
  bool Indexable() const { return kind <= SequenceKind::kRange; }
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;  // in order of insertion
  int depth = 1;                               // filled by Value::Of

  // Replaces the value of an equal key, or appends. Fails on a key that Python cannot hash.
  void Set(Value key, Value value, Budget& budget);
  void Set(std::string key, Value value) { SetText(Value::Of(std::move(key)), std::move(value)); }
  const Value* Find(const Value& key, Budget& budget) const;
  const Value* Find(std::string_view key) const;

 private:
  void SetText(Value key, Value value);
  std::optional<size_t> IndexOf(std::string_view key) const;

  std::unordered_map<std::string_view, size_t>
      index_;  // of text keys; the views point into the keys' shared strings
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Anything with identity or behaviour: functions, macros, bound methods, namespaces, loops,
// generators.
struct Object : std::enable_shared_from_this<Object> {
  virtual ~Object() = default;
  virtual std::string_view TypeName() const = 0;
  virtual std::string Repr(Budget& budget) const;
  virtual bool Callable() const { return false; }
  virtual Value Call(Interpreter& interpreter, const Arguments& arguments);
  // Nothing when there is no such attribute.
  virtual std::optional<Value> Attribute(std::string_view name);
  virtual std::optional<int64_t> Length() { return std::nullopt; }
  virtual int Depth() const { return 1; }
  // Drops what it holds. Called at the end of a rendering on what may hold itself.
  virtual void Clear() {}
};

// A source of values that is used up by reading, like a Python generator.
struct Iterator : Object {
  explicit Iterator(std::string_view type_name) : type_name_(type_name) {}
  std::string_view TypeName() const override { return type_name_; }
  // Nothing at the end.
  virtual std::optional<Value> Next() = 0;

 private:
  std::string_view type_name_;
};

// An iterator over anything that can be iterated, a generator itself included; null when it cannot.
std::shared_ptr<Iterator> TryIterate(const Value& value);
std::shared_ptr<Iterator> Iterate(const Value& value);
// All items at once; charges for each.
std::vector<Value> Collect(const Value& value, Budget& budget);
// len(); nothing for what has none.
std::optional<int64_t> TryLength(const Value& value);
int64_t LengthOf(const Value& value);

// Whether Python could use it as a key.
bool Hashable(const Value& value);
bool Equal(const Value& left, const Value& right, Budget& budget);
// Python's ordering: negative, zero or positive; nothing when one is not a number. Fails for types
// without an order.
std::optional<int> Compare(const Value& left, const Value& right, std::string_view op,
                           Budget& budget);
bool Less(const Value& left, const Value& right, Budget& budget);

// Fails with the message of an undefined value.
[[noreturn]] void FailUndefined(const Value& value);
inline void RequireDefined(const Value& value) {
  if (value.IsUndefined()) FailUndefined(value);
}

constexpr int kMaxValueDepth = 1000;

}  // namespace loopspec::jinja

#include "jinja/value.h"

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "jinja/unicode.h"

namespace loopspec::jinja {
namespace {

int NestedDepth(int deepest_child) {
  if (deepest_child >= kMaxValueDepth) {
    Fail("chat template: a value is nested deeper than {} levels", kMaxValueDepth);
  }
  return deepest_child + 1;
}

// Integers beyond 2^53 are not exact as doubles, so an integer is compared with a float without
// converting it.
std::optional<int> CompareIntFloat(int64_t left, double right) {
  if (std::isnan(right)) return std::nullopt;
  if (right >= 9223372036854775808.0) return -1;
  if (right < -9223372036854775808.0) return 1;
  const double whole = std::floor(right);
  const int64_t rounded = static_cast<int64_t>(whole);
  if (left != rounded) return left < rounded ? -1 : 1;
  return right > whole ? -1 : 0;
}

std::optional<int> CompareNumbers(const Value& left, const Value& right) {
  const std::optional<int64_t> a = left.integer(), b = right.integer();
  if (a && b) return *a < *b ? -1 : *a > *b;
  if (a) return CompareIntFloat(*a, *right.number());
  if (b) {
    const std::optional<int> reversed = CompareIntFloat(*b, *left.number());
    return reversed ? std::optional<int>(-*reversed) : std::nullopt;
  }
  const double x = *left.number(), y = *right.number();
  if (std::isnan(x) || std::isnan(y)) return std::nullopt;
  return x < y ? -1 : x > y;
}

// Lists equal lists and tuples equal tuples; a view of values equals only itself.
bool SameFamily(SequenceKind a, SequenceKind b) {
  const auto family = [](SequenceKind kind) {
    return kind == SequenceKind::kDictItems ? SequenceKind::kDictKeys : kind;
  };
  return family(a) == family(b) && a != SequenceKind::kDictValues;
}

bool EqualSets(const Sequence& left, const Sequence& right, Budget& budget) {
  return left.items.size() == right.items.size() &&
         std::all_of(left.items.begin(), left.items.end(), [&](const Value& item) {
           return std::any_of(right.items.begin(), right.items.end(),
                              [&](const Value& other) { return Equal(item, other, budget); });
         });
}

bool EqualSequences(const Sequence& left, const Sequence& right, Budget& budget) {
  if (!SameFamily(left.kind, right.kind)) return false;
  if (!left.Indexable()) return EqualSets(left, right, budget);
  return std::equal(left.items.begin(), left.items.end(), right.items.begin(), right.items.end(),
                    [&](const Value& a, const Value& b) { return Equal(a, b, budget); });
}

bool EqualDicts(const Dict& left, const Dict& right, Budget& budget) {
  if (left.items.size() != right.items.size()) return false;
  for (const auto& [key, value] : left.items) {
    const Value* other = right.Find(key, budget);
    if (other == nullptr || !Equal(value, *other, budget)) return false;
  }
  return true;
}

class SequenceIterator final : public Iterator {
 public:
  explicit SequenceIterator(Value value) : Iterator("list_iterator"), value_(std::move(value)) {}
  std::optional<Value> Next() override {
    const std::vector<Value>& items = value_.sequence()->items;
    if (position_ >= items.size()) return std::nullopt;
    return items[position_++];
  }
  int Depth() const override { return value_.Depth() + 1; }

 private:
  Value value_;
  size_t position_ = 0;
};

class KeyIterator final : public Iterator {
 public:
  explicit KeyIterator(Value value) : Iterator("dict_keyiterator"), value_(std::move(value)) {}
  std::optional<Value> Next() override {
    const auto& items = value_.dict()->items;
    if (position_ >= items.size()) return std::nullopt;
    return items[position_++].first;
  }
  int Depth() const override { return value_.Depth() + 1; }

 private:
  Value value_;
  size_t position_ = 0;
};

class CharacterIterator final : public Iterator {
 public:
  explicit CharacterIterator(Value value) : Iterator("str_iterator"), value_(std::move(value)) {}
  std::optional<Value> Next() override {
    const std::string& text = value_.text();
    if (position_ >= text.size()) return std::nullopt;
    const size_t start = position_;
    NextCodePoint(text, &position_);
    return Value::Of(text.substr(start, position_ - start));
  }

 private:
  Value value_;
  size_t position_ = 0;
};

}  // namespace

Value Value::MakeUndefined(std::string message) {
  return Value(Undefined{std::make_shared<const std::string>(std::move(message))});
}

Value Value::Of(std::string text, bool markup) {
  const int64_t length = CountCodePoints(text);
  return Value(std::make_shared<const String>(String{std::move(text), length, markup}));
}

Value Value::List(std::vector<Value> items) {
  Sequence sequence;
  sequence.items = std::move(items);
  return Of(std::move(sequence));
}

Value Value::Tuple(std::vector<Value> items) {
  Sequence sequence;
  sequence.kind = SequenceKind::kTuple;
  sequence.items = std::move(items);
  return Of(std::move(sequence));
}

Value Value::Of(Sequence sequence) {
  int deepest = 0;
  for (const Value& item : sequence.items) deepest = std::max(deepest, item.Depth());
  sequence.depth = NestedDepth(deepest);
  return Value(std::make_shared<const Sequence>(std::move(sequence)));
}

Value Value::Of(Dict dict) {
  int deepest = 0;
  for (const auto& [key, value] : dict.items) {
    deepest = std::max({deepest, key.Depth(), value.Depth()});
  }
  dict.depth = NestedDepth(deepest);
  return Value(std::make_shared<const Dict>(std::move(dict)));
}

Value Value::FromJson(const OrderedJson& json) {
  switch (json.type()) {
    case OrderedJson::value_t::boolean:
      return Of(json.get<bool>());
    case OrderedJson::value_t::number_integer:
      return Of(json.get<int64_t>());
    case OrderedJson::value_t::number_unsigned: {
      const uint64_t number = json.get<uint64_t>();
      if (number > uint64_t{INT64_MAX}) return Of(static_cast<double>(number));
      return Of(static_cast<int64_t>(number));
    }
    case OrderedJson::value_t::number_float:
      return Of(json.get<double>());
    case OrderedJson::value_t::string:
      return Of(json.get<std::string>());
    case OrderedJson::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const OrderedJson& item : json) items.push_back(FromJson(item));
      return List(std::move(items));
    }
    case OrderedJson::value_t::object: {
      Dict dict;
      for (const auto& [key, item] : json.items()) dict.Set(key, FromJson(item));
      return Of(std::move(dict));
    }
    default:
      return MakeNone();
  }
}

const String* Value::string() const {
  const auto* data = std::get_if<std::shared_ptr<const String>>(&data_);
  return data == nullptr ? nullptr : data->get();
}
const Sequence* Value::sequence() const {
  const auto* data = std::get_if<std::shared_ptr<const Sequence>>(&data_);
  return data == nullptr ? nullptr : data->get();
}
const Dict* Value::dict() const {
  const auto* data = std::get_if<std::shared_ptr<const Dict>>(&data_);
  return data == nullptr ? nullptr : data->get();
}
Object* Value::object() const {
  const auto* data = std::get_if<std::shared_ptr<Object>>(&data_);
  return data == nullptr ? nullptr : data->get();
}
std::shared_ptr<Object> Value::shared_object() const {
  const auto* data = std::get_if<std::shared_ptr<Object>>(&data_);
  return data == nullptr ? nullptr : *data;
}

std::optional<int64_t> Value::integer() const {
  if (const auto* number = std::get_if<int64_t>(&data_)) return *number;
  if (const auto* flag = std::get_if<bool>(&data_)) return *flag ? 1 : 0;
  return std::nullopt;
}

std::optional<double> Value::number() const {
  if (const auto* number = std::get_if<double>(&data_)) return *number;
  if (const std::optional<int64_t> number = integer()) return static_cast<double>(*number);
  return std::nullopt;
}

std::string Value::undefined_message() const {
  const auto& message = std::get<Undefined>(data_).message;
  return message == nullptr ? "the value is undefined" : *message;
}

bool Value::Truthy() const {
  if (IsUndefined() || IsNone()) return false;
  if (const std::optional<int64_t> number = integer()) return *number != 0;
  if (IsFloat()) return *number() != 0;
  if (const String* s = string()) return !s->text.empty();
  if (const Sequence* s = sequence()) return !s->items.empty();
  if (const Dict* d = dict()) return !d->items.empty();
  const std::optional<int64_t> length = object()->Length();
  return !length || *length != 0;
}

std::string_view Value::TypeName() const {
  if (IsUndefined()) return "Undefined";
  if (IsNone()) return "NoneType";
  if (IsBool()) return "bool";
  if (IsInt()) return "int";
  if (IsFloat()) return "float";
  if (const String* s = string()) return s->markup ? "Markup" : "str";
  if (dict() != nullptr) return "dict";
  if (const Object* o = object()) return o->TypeName();
  switch (sequence()->kind) {
    case SequenceKind::kList:
      return "list";
    case SequenceKind::kTuple:
      return "tuple";
    case SequenceKind::kRange:
      return "range";
    case SequenceKind::kDictKeys:
      return "dict_keys";
    case SequenceKind::kDictValues:
      return "dict_values";
    case SequenceKind::kDictItems:
      return "dict_items";
  }
  return "object";
}

int Value::Depth() const {
  if (const Sequence* s = sequence()) return s->depth;
  if (const Dict* d = dict()) return d->depth;
  if (const Object* o = object()) return o->Depth();
  return 0;
}

bool Value::Is(const Value& other) const {
  if (data_.index() != other.data_.index()) return false;
  if (IsNone()) return true;
  if (IsBool()) return boolean() == other.boolean();
  // Small integers and equal literals are one object in CPython; beyond that identity of numbers is
  // not a promise.
  if (IsInt()) return integer() == other.integer();
  if (IsFloat()) return number() == other.number();
  if (string() != nullptr) {
    return string() == other.string() ||
           (text() == other.text() && string()->markup == other.string()->markup);
  }
  if (sequence() != nullptr) return sequence() == other.sequence();
  if (dict() != nullptr) return dict() == other.dict();
  return object() != nullptr && object() == other.object();
}

bool Hashable(const Value& value) {
  if (value.dict() != nullptr) return false;
  if (const Sequence* s = value.sequence()) {
    if (s->kind == SequenceKind::kRange) return true;
    return s->kind == SequenceKind::kTuple &&
           std::all_of(s->items.begin(), s->items.end(), Hashable);
  }
  return true;
}

std::optional<size_t> Dict::IndexOf(std::string_view key) const {
  const auto it = index_.find(key);
  return it == index_.end() ? std::nullopt : std::optional<size_t>(it->second);
}

void Dict::SetText(Value key, Value value) {
  if (const std::optional<size_t> at = IndexOf(key.text())) {
    items[*at].second = std::move(value);
    return;
  }
  index_.emplace(key.text(), items.size());
  items.emplace_back(std::move(key), std::move(value));
}

void Dict::Set(Value key, Value value, Budget& budget) {
  if (!Hashable(key)) Fail("chat template: unhashable type: '{}'", key.TypeName());
  if (key.IsString()) return SetText(std::move(key), std::move(value));
  if (const Value* found = Find(key, budget)) {
    *const_cast<Value*>(found) = std::move(value);
    return;
  }
  items.emplace_back(std::move(key), std::move(value));
}

const Value* Dict::Find(std::string_view key) const {
  const std::optional<size_t> at = IndexOf(key);
  return at ? &items[*at].second : nullptr;
}

const Value* Dict::Find(const Value& key, Budget& budget) const {
  if (!Hashable(key)) Fail("chat template: unhashable type: '{}'", key.TypeName());
  if (const String* s = key.string()) return Find(std::string_view(s->text));
  budget.Charge(static_cast<int64_t>(items.size() / 16));
  for (const auto& [other, value] : items) {
    if (!other.IsString() && Equal(key, other, budget)) return &value;
  }
  return nullptr;
}

std::string Object::Repr(Budget&) const {
  return fmt::format("<{} object>", TypeName());
}

Value Object::Call(Interpreter&, const Arguments&) {
  Fail("chat template: '{}' object is not callable", TypeName());
}

std::optional<Value> Object::Attribute(std::string_view) {
  return std::nullopt;
}

std::shared_ptr<Iterator> TryIterate(const Value& value) {
  if (value.IsUndefined()) return std::make_shared<SequenceIterator>(Value::List({}));
  if (value.IsString()) return std::make_shared<CharacterIterator>(value);
  if (value.sequence() != nullptr) return std::make_shared<SequenceIterator>(value);
  if (value.dict() != nullptr) return std::make_shared<KeyIterator>(value);
  return std::dynamic_pointer_cast<Iterator>(value.shared_object());
}

std::shared_ptr<Iterator> Iterate(const Value& value) {
  std::shared_ptr<Iterator> iterator = TryIterate(value);
  if (iterator == nullptr) Fail("chat template: '{}' object is not iterable", value.TypeName());
  return iterator;
}

std::vector<Value> Collect(const Value& value, Budget& budget) {
  if (const Sequence* s = value.sequence()) {
    budget.ChargeItems(s->items.size());
    return s->items;
  }
  std::vector<Value> items;
  const std::shared_ptr<Iterator> iterator = Iterate(value);
  while (std::optional<Value> item = iterator->Next()) {
    budget.Charge(1);
    items.push_back(*std::move(item));
  }
  return items;
}

std::optional<int64_t> TryLength(const Value& value) {
  if (value.IsUndefined()) return 0;
  if (const String* s = value.string()) return s->length;
  if (const Sequence* s = value.sequence()) return static_cast<int64_t>(s->items.size());
  if (const Dict* d = value.dict()) return static_cast<int64_t>(d->items.size());
  return value.object() == nullptr ? std::nullopt : value.object()->Length();
}

int64_t LengthOf(const Value& value) {
  const std::optional<int64_t> length = TryLength(value);
  if (!length) Fail("chat template: object of type '{}' has no len()", value.TypeName());
  return *length;
}

bool Equal(const Value& left, const Value& right, Budget& budget) {
  budget.Charge(1);
  const Budget::Level level(budget);
  if (left.IsNumber() && right.IsNumber()) return CompareNumbers(left, right) == 0;
  if (left.IsString() && right.IsString()) return left.text() == right.text();
  if (left.sequence() != nullptr && right.sequence() != nullptr) {
    return left.sequence() == right.sequence() ||
           EqualSequences(*left.sequence(), *right.sequence(), budget);
  }
  if (left.dict() != nullptr && right.dict() != nullptr) {
    return left.dict() == right.dict() || EqualDicts(*left.dict(), *right.dict(), budget);
  }
  if (left.IsUndefined() || left.IsNone()) {
    return left.IsUndefined() == right.IsUndefined() && left.IsNone() == right.IsNone();
  }
  return left.object() != nullptr && left.object() == right.object();
}

std::optional<int> Compare(const Value& left, const Value& right, std::string_view op,
                           Budget& budget) {
  budget.Charge(1);
  const Budget::Level level(budget);
  RequireDefined(left);
  RequireDefined(right);
  if (left.IsNumber() && right.IsNumber()) return CompareNumbers(left, right);
  if (left.IsString() && right.IsString()) {
    // UTF-8 sorts as its code points do.
    const int order = left.text().compare(right.text());
    return order < 0 ? -1 : order > 0;
  }
  const Sequence *a = left.sequence(), *b = right.sequence();
  if (a != nullptr && b != nullptr && SameFamily(a->kind, b->kind) &&
      a->kind != SequenceKind::kRange && a->Indexable()) {
    const size_t common = std::min(a->items.size(), b->items.size());
    for (size_t i = 0; i < common; ++i) {
      if (!Equal(a->items[i], b->items[i], budget)) {
        return Compare(a->items[i], b->items[i], op, budget);
      }
    }
    return a->items.size() < b->items.size() ? -1 : a->items.size() > b->items.size();
  }
  Fail("chat template: '{}' not supported between instances of '{}' and '{}'", op, left.TypeName(),
       right.TypeName());
}

bool Less(const Value& left, const Value& right, Budget& budget) {
  const std::optional<int> order = Compare(left, right, "<", budget);
  return order && *order < 0;
}

void FailUndefined(const Value& value) {
  Fail("chat template: {}", value.undefined_message());
}

}  // namespace loopspec::jinja

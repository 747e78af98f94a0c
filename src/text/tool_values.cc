#include "text/tool_values.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/escape_json.h"
#include "base/trimmed.h"
#include "text/tool_format.h"

namespace loopspec {
namespace {

constexpr int kMostReferences = 32;

bool IsAnnotation(std::string_view keyword) {
  constexpr std::array kKeywords = {"title",    "description", "default",  "examples",
                                    "$comment", "deprecated",  "readOnly", "writeOnly",
                                    "$schema",  "$id",         "$defs",    "definitions"};
  return std::ranges::find(kKeywords, keyword) != kKeywords.end();
}

unsigned TypeNamed(const OrderedJson& name) {
  constexpr std::array<std::pair<const char*, unsigned>, 7> kNames = {{
      {"null", kNullValue},
      {"integer", kIntegerValue},
      {"number", kNumberValue},
      {"boolean", kBooleanValue},
      {"object", kObjectValue},
      {"array", kArrayValue},
      {"string", kStringValue},
  }};
  for (const auto& [known, type] : kNames) {
    if (name == known) return type;
  }
  return 0;
}

// The type that the keywords of a schema without one speak of; 0: none. Others are allowed too, but
// need not be written.
unsigned TypeImplied(const OrderedJson& schema) {
  constexpr std::array<std::pair<const char*, unsigned>, 18> kKeywords = {{
      {"properties", kObjectValue},
      {"patternProperties", kObjectValue},
      {"additionalProperties", kObjectValue},
      {"required", kObjectValue},
      {"minProperties", kObjectValue},
      {"maxProperties", kObjectValue},
      {"items", kArrayValue},
      {"prefixItems", kArrayValue},
      {"minItems", kArrayValue},
      {"maxItems", kArrayValue},
      {"pattern", kStringValue},
      {"format", kStringValue},
      {"minLength", kStringValue},
      {"maxLength", kStringValue},
      {"minimum", kNumberValue},
      {"maximum", kNumberValue},
      {"exclusiveMinimum", kNumberValue},
      {"exclusiveMaximum", kNumberValue},
  }};
  for (const auto& [keyword, type] : kKeywords) {
    if (schema.contains(keyword)) return type;
  }
  return 0;
}

std::string NameOfType(unsigned type) {
  switch (type) {
    case kNullValue:
      return "null";
    case kIntegerValue:
      return "integer";
    case kNumberValue:
      return "number";
    case kBooleanValue:
      return "boolean";
    case kObjectValue:
      return "object";
    case kArrayValue:
      return "array";
    default:
      return "string";
  }
}

template <typename Value>
unsigned TypeOf(const Value& value) {
  if (value.is_null()) return kNullValue;
  if (value.is_boolean()) return kBooleanValue;
  if (value.is_object()) return kObjectValue;
  if (value.is_array()) return kArrayValue;
  if (value.is_string()) return kStringValue;
  if (value.is_number_integer()) return kIntegerValue;
  const auto number = value.template get<double>();
  return number == std::floor(number) ? kIntegerValue : kNumberValue;
}

// A schema whose choices are taken apart: each branch has one type, or none.
struct Branch {
  OrderedJson schema;
  unsigned type;  // 0: any
};

class Branches {
 public:
  explicit Branches(const OrderedJson& root) : root_(root) {}

  void Add(const OrderedJson& given, int references) {
    const OrderedJson* referred = Referred(given, root_);
    if (referred == nullptr || !referred->is_object() || references > kMostReferences)
      return Any(given);
    if (referred != &given) return Add(*referred, references + 1);
    const OrderedJson& schema = given;
    for (const char* choice : {"anyOf", "oneOf"}) {
      const auto found = schema.find(choice);
      if (found == schema.end() || !found->is_array()) continue;
      for (const auto& [keyword, value] : schema.items()) {
        if (keyword != choice && !IsAnnotation(keyword)) Ignore(keyword);
      }
      for (const OrderedJson& option : *found) Add(option, references + 1);
      return;
    }
    if (const auto all = schema.find("allOf");
        all != schema.end() && all->is_array() && !schema.contains("type")) {
      if (all->size() == 1 && schema.size() == 1) return Add((*all)[0], references + 1);
      return All(schema, *all, references);
    }
    if (schema.contains("const")) return Values(schema, OrderedJson::array({schema["const"]}));
    if (const auto values = schema.find("enum"); values != schema.end() && values->is_array())
      return Values(schema, *values);
    const auto type = schema.find("type");
    if (type == schema.end()) {
      const unsigned implied = TypeImplied(schema);
      return implied == 0 ? Any(schema) : One(schema, implied);
    }
    if (!type->is_array()) return One(schema, TypeNamed(*type));
    for (const OrderedJson& name : *type) One(schema, TypeNamed(name));
  }

  std::vector<Branch> branches;
  std::vector<std::string> ignored;

 private:
  void Ignore(const std::string& keyword) {
    if (std::ranges::find(ignored, keyword) == ignored.end()) ignored.push_back(keyword);
  }
  void Any(const OrderedJson& schema) { branches.push_back({schema, 0}); }
  void One(OrderedJson schema, unsigned type) { branches.push_back({std::move(schema), type}); }
  // What all of the schemas allow; written as JSON where that is one type and no string.
  void All(const OrderedJson& schema, const OrderedJson& all, int references) {
    unsigned types = kAnyValue;
    for (const OrderedJson& part : all) {
      Branches inner(root_);
      inner.Add(part, references + 1);
      unsigned own = 0;
      for (const Branch& branch : inner.branches)
        own |= branch.type == 0 ? unsigned{kAnyValue} : branch.type;
      types &= own;
    }
    const bool one = types != 0 && (types & (types - 1)) == 0;
    if (!one || types == kStringValue) return Any(schema);
    One(schema, types);
  }
  // One branch for each type among the values that the schema's own type allows.
  void Values(const OrderedJson& schema, const OrderedJson& values) {
    for (unsigned type = kNullValue; type <= kStringValue; type <<= 1) {
      if (type == kQuotedValue) continue;
      OrderedJson own = OrderedJson::array();
      for (const OrderedJson& value : values) {
        if (TypeOf(value) == type && Allows(schema, type)) own.push_back(value);
      }
      if (!own.empty()) One({{"enum", std::move(own)}}, type);
    }
  }
  static bool Allows(const OrderedJson& schema, unsigned type) {
    const auto found = schema.find("type");
    if (found == schema.end()) return true;
    unsigned types = 0;
    if (!found->is_array()) types = TypeNamed(*found);
    if (found->is_array())
      for (const OrderedJson& name : *found) types |= TypeNamed(name);
    if ((types & kNumberValue) != 0) types |= kIntegerValue;
    return (types & type) != 0;
  }

  const OrderedJson& root_;
};

bool IsPlain(const OrderedJson& schema) {
  return std::ranges::all_of(schema.items(), [](const auto& entry) {
    return entry.key() == "type" || IsAnnotation(entry.key());
  });
}

// A schema that stands for itself: with the definitions that its references name.
OrderedJson WithDefinitions(OrderedJson schema, const OrderedJson& root) {
  if (!schema.is_object() || !root.is_object()) return schema;
  for (const char* place : {"$defs", "definitions"}) {
    if (root.contains(place) && !schema.contains(place)) schema[place] = root[place];
  }
  return schema;
}

std::optional<uint32_t> Length(const OrderedJson& schema, const char* keyword) {
  const auto found = schema.find(keyword);
  if (found == schema.end() || !found->is_number_unsigned()) return std::nullopt;
  return static_cast<uint32_t>(std::min<uint64_t>(found->get<uint64_t>(), 1'000'000));
}

// Whether the schema of a string says more than the string's length.
bool IsQuoted(const OrderedJson& schema) {
  return !schema.contains("enum") && std::ranges::any_of(schema.items(), [](const auto& entry) {
    const std::string& keyword = entry.key();
    return keyword != "type" && keyword != "minLength" && keyword != "maxLength" &&
           !IsAnnotation(keyword);
  });
}

void AddString(const OrderedJson& schema, PlainValue& value) {
  if (const auto values = schema.find("enum"); values != schema.end()) {
    for (const OrderedJson& text : *values) value.texts.push_back(text.get<std::string>());
    return;
  }
  PlainValue::Text text{Length(schema, "minLength").value_or(0), Length(schema, "maxLength")};
  if (text.max && text.min > *text.max)
    Fail("minLength is {} and maxLength is {}, which no text has", text.min, *text.max);
  if (value.text) {  // a length that either branch allows
    text.min = std::min(text.min, value.text->min);
    text.max = text.max && value.text->max ? std::optional(std::max(*text.max, *value.text->max))
                                           : std::nullopt;
  }
  value.text = text;
}

bool IsType(const Json& value, unsigned type) {
  if (type == kQuotedValue) return value.is_string();
  if (type == kNumberValue) return value.is_number();
  return TypeOf(value) == type;
}

}  // namespace

const OrderedJson* Referred(const OrderedJson& schema, const OrderedJson& root) {
  if (!schema.is_object() || !schema.contains("$ref")) return &schema;
  const OrderedJson& name = schema["$ref"];
  if (!name.is_string()) return nullptr;
  const auto& text = name.get_ref<const std::string&>();
  if (text == "#") return &root;
  if (!text.starts_with("#/")) return nullptr;
  try {
    const OrderedJson::json_pointer place(text.substr(1));
    return root.contains(place) ? &root.at(place) : nullptr;
  } catch (const OrderedJson::exception&) {  // the reference is no valid JSON pointer
    return nullptr;
  }
}

PlainValue PlainValueOf(const OrderedJson& schema, const OrderedJson& root) {
  Branches taken(root);
  taken.Add(schema, 0);
  PlainValue value;
  unsigned types = 0;
  bool any = false;
  for (const Branch& branch : taken.branches) {
    types |= branch.type;
    any = any || branch.type == 0;
  }
  if (!any && (types & kStringValue) == 0) {
    value.types = types;
    value.json.push_back(WithDefinitions(schema, root));
    return value;
  }
  value.ignored = std::move(taken.ignored);
  if (any) {
    value.types = kAnyValue;
    value.text = PlainValue::Text{};
    for (const Branch& branch : taken.branches) {
      if (!branch.schema.is_object()) continue;
      for (const auto& [keyword, ignored] : branch.schema.items()) {
        if (keyword != "type" && !IsAnnotation(keyword)) value.ignored.push_back(keyword);
      }
    }
    return value;
  }
  bool quoted = false;
  for (const Branch& branch : taken.branches) {
    if (branch.type != kStringValue) continue;
    if (IsQuoted(branch.schema)) {
      quoted = true;
    } else {
      AddString(branch.schema, value);
    }
  }
  // Text of any kind may begin with quotes.
  quoted = quoted && !value.text;
  value.types = value.text || !value.texts.empty() ? unsigned{kStringValue} : 0;
  for (const Branch& branch : taken.branches) {
    const bool structured = branch.type == kObjectValue || branch.type == kArrayValue;
    if (branch.type == kStringValue && (!quoted || !IsQuoted(branch.schema))) continue;
    // Any text may come beside these, and would be read as one of their type: only a type whose
    // every value is allowed can be told from a string. Objects and arrays begin with brackets,
    // which the text then does not.
    if (value.text && !structured && !IsPlain(branch.schema)) continue;
    value.types |= branch.type == kStringValue ? unsigned{kQuotedValue} : branch.type;
    value.json.push_back(WithDefinitions(branch.schema, root));
    value.json.back()["type"] = NameOfType(branch.type);
  }
  // A text that another type claims cannot be written.
  std::erase_if(value.texts, [&](const std::string& text) {
    return text.find(kParameterEnd) != text.npos ||
           ReadPlainValue(text, value.types) != '"' + EscapedJson(text) + '"';
  });
  return value;
}

std::string ReadPlainValue(std::string_view text, unsigned types) {
  const std::string_view core = Trimmed(text);
  if ((types & ~unsigned{kStringValue}) != 0 && !core.empty()) {
    const Json json = Json::parse(core, nullptr, false);
    for (unsigned type = kNullValue; type < kStringValue; type <<= 1) {
      if ((types & type) != 0 && !json.is_discarded() && IsType(json, type))
        return std::string(core);
    }
    if ((types & kStringValue) == 0)
      return std::string(core);  // such as a number that no double holds
  }
  return '"' + EscapedJson(text) + '"';
}

}  // namespace loopspec

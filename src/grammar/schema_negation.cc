// What does not fulfil a schema: one of its keywords fails.
#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "grammar/characters.h"
#include "grammar/formats.h"
#include "grammar/schema_shapes.h"

namespace loopspec::grammar {
namespace {

const OrderedJson& Never() {
  static const OrderedJson never = false;
  return never;
}

// The types of values that can fail to fulfil a keyword.
uint32_t TypesOfKeyword(std::string_view keyword) {
  static const std::map<std::string_view, uint32_t> types{{"minimum", kNumber},
                                                          {"maximum", kNumber},
                                                          {"exclusiveMinimum", kNumber},
                                                          {"exclusiveMaximum", kNumber},
                                                          {"multipleOf", kNumber},
                                                          {"minLength", kString},
                                                          {"maxLength", kString},
                                                          {"pattern", kString},
                                                          {"format", kString},
                                                          {"minItems", kArray},
                                                          {"maxItems", kArray},
                                                          {"items", kArray},
                                                          {"additionalItems", kArray},
                                                          {"prefixItems", kArray},
                                                          {"contains", kArray},
                                                          {"uniqueItems", kArray},
                                                          {"required", kObject},
                                                          {"properties", kObject},
                                                          {"patternProperties", kObject},
                                                          {"propertyNames", kObject},
                                                          {"minProperties", kObject},
                                                          {"maxProperties", kObject},
                                                          {"dependencies", kObject},
                                                          {"dependentRequired", kObject},
                                                          {"dependentSchemas", kObject},
                                                          {"additionalProperties", kObject},
                                                          {"unevaluatedItems", kArray},
                                                          {"unevaluatedProperties", kObject}};
  const auto found = types.find(keyword);
  return found == types.end() ? static_cast<uint32_t>(kAnyType) : found->second;
}

}  // namespace

bool SaysNothing(const std::string& keyword) {
  static const std::set<std::string, std::less<>> assertions{"type",
                                                             "enum",
                                                             "const",
                                                             "minimum",
                                                             "maximum",
                                                             "multipleOf",
                                                             "minLength",
                                                             "maxLength",
                                                             "pattern",
                                                             "format",
                                                             "minItems",
                                                             "maxItems",
                                                             "items",
                                                             "additionalItems",
                                                             "prefixItems",
                                                             "contains",
                                                             "uniqueItems",
                                                             "required",
                                                             "properties",
                                                             "patternProperties",
                                                             "propertyNames",
                                                             "minProperties",
                                                             "$ref",
                                                             "maxProperties",
                                                             "additionalProperties",
                                                             "allOf",
                                                             "anyOf",
                                                             "oneOf",
                                                             "not",
                                                             "if",
                                                             "dependencies",
                                                             "$dynamicRef",
                                                             "$recursiveRef",
                                                             "dependentRequired",
                                                             "dependentSchemas",
                                                             "exclusiveMinimum",
                                                             "exclusiveMaximum",
                                                             "unevaluatedProperties",
                                                             "unevaluatedItems",
                                                             "minContains",
                                                             "maxContains",
                                                             "extends",
                                                             "disallow",
                                                             "divisibleBy"};
  return !assertions.contains(keyword);
}

const OrderedJson& SchemaReader::ConstSchema(const OrderedJson& value) {
  auto& made = consts_[&value];
  if (made == nullptr) made = std::make_unique<OrderedJson>(OrderedJson{{"const", value}});
  return *made;
}

Node SchemaReader::NamesOutside(const std::vector<std::string>& names,
                                const std::vector<Node>& patterns) {
  std::vector<Node> inside = patterns;
  for (const std::string& name : names) {
    inside.push_back(SpelledText(regular_, name, Writing::kJsonString));
  }
  return regular_.And(
      {regular_.Repeat(character_, 0, kUnbounded), regular_.Not(regular_.Or(std::move(inside)))});
}

void SchemaReader::ApplyNegated(ShapeList& shapes, const OrderedJson& schema) {
  ShapeList all;
  bool left_out = false;
  ++negations_;
  for (const auto& [keyword, value] : schema.items()) {
    if (SaysNothing(keyword)) continue;
    if (old_references_ && schema.contains("$ref") && keyword != "$ref") continue;
    // Values of other types fulfil the keyword whatever they are.
    ShapeList some = shapes;
    for (Shape& shape : some) shape.types &= TypesOfKeyword(keyword);
    std::erase_if(some, [](const Shape& shape) { return shape.types == 0; });
    if (some.empty()) continue;
    if (!ApplyNegatedKeyword(some, schema, keyword, value)) {
      if (narrow_not_) {
        left_out = true;
        continue;
      }
      --negations_;
      Unsupported("not");
      return;  // ignored
    }
    std::erase_if(some, [](const Shape& shape) { return shape.types == 0; });
    all.insert(all.end(), some.begin(), some.end());
  }
  --negations_;
  // Something must be left of what was asked for.
  if (left_out && all.empty()) Unsupported("not");
  shapes = std::move(all);
}

bool SchemaReader::ApplyNegatedKeyword(ShapeList& shapes, const OrderedJson& schema,
                                       const std::string& keyword, const OrderedJson& value) {
  const auto only = [&](uint32_t types) {
    for (Shape& shape : shapes) shape.types &= types;
  };
  const auto count = [&]() -> uint64_t {
    if (!value.is_number_unsigned()) Fail("the schema's {} is no whole number", keyword);
    return value.get<uint64_t>();
  };
  if (keyword == "type") {
    ShapeList typed(1);
    ApplyKeyword(typed, schema, keyword, value);
    only(~typed.front().types);
  } else if (keyword == "const") {
    ExcludeValue(shapes, value);
  } else if (keyword == "enum") {
    for (const OrderedJson& item : value) ExcludeValue(shapes, item);
  } else if ((keyword == "pattern" || keyword == "format") && value.is_string()) {
    only(kString);
    Node inside = kNothing;
    if (keyword == "pattern") {
      inside = Pattern(value);
    } else {
      const auto pattern = FormatPattern(value.get_ref<const std::string&>());
      // What nobody checks never fails.
      if (!pattern) {
        shapes.clear();
        return true;
      }
      inside = Pattern("^(?:" + *pattern + ")$");
    }
    for (Shape& shape : shapes) shape.texts.push_back(regular_.Not(inside));
  } else if (keyword == "minLength" || keyword == "minItems" || keyword == "minProperties") {
    const uint64_t below = count();
    only(below == 0               ? 0u
         : keyword == "minLength" ? kString
         : keyword == "minItems"  ? kArray
                                  : kObject);
    for (Shape& shape : shapes) {
      uint64_t& max = keyword == "minLength"  ? shape.max_length
                      : keyword == "minItems" ? shape.max_items
                                              : shape.max_properties;
      max = std::min(max, below == 0 ? 0 : below - 1);
    }
  } else if (keyword == "maxLength" || keyword == "maxItems" || keyword == "maxProperties") {
    const uint64_t above = count();
    only(keyword == "maxLength" ? kString : keyword == "maxItems" ? kArray : kObject);
    for (Shape& shape : shapes) {
      uint64_t& min = keyword == "maxLength"  ? shape.min_length
                      : keyword == "maxItems" ? shape.min_items
                                              : shape.min_properties;
      min = std::max(min, above + 1);
    }
  } else {
    return ApplyNegatedNumber(shapes, schema, keyword, value) ||
           ApplyNegatedArray(shapes, schema, keyword, value) ||
           ApplyNegatedObject(shapes, schema, keyword, value) ||
           ApplyNegatedCombination(shapes, schema, keyword, value);
  }
  return true;
}

bool SchemaReader::ApplyNegatedNumber(ShapeList& shapes, const OrderedJson& schema,
                                      const std::string& keyword, const OrderedJson& value) {
  const bool bound = keyword == "minimum" || keyword == "exclusiveMinimum" ||
                     keyword == "maximum" || keyword == "exclusiveMaximum";
  if (!bound) return false;
  if (value.is_boolean()) {  // draft 4: read with the bound
    shapes.clear();
    return true;
  }
  if (!value.is_number()) return false;
  for (Shape& shape : shapes) shape.types &= kNumber;
  const bool min = keyword == "minimum" || keyword == "exclusiveMinimum";
  const char* old = min ? "exclusiveMinimum" : "exclusiveMaximum";
  const bool exclusive = keyword.starts_with("exclusive") ||
                         (schema.contains(old) && schema[old] == OrderedJson(true));
  const char* opposite = min ? (exclusive ? "maximum" : "exclusiveMaximum")
                             : (exclusive ? "minimum" : "exclusiveMinimum");
  return ApplyNumber(shapes, OrderedJson::object(), opposite, value);
}

// Any value but this one.
void SchemaReader::ExcludeValue(ShapeList& shapes, const OrderedJson& value) {
  if (!value.is_structured()) {
    for (Shape& shape : shapes) shape.excluded.push_back(&value);
    return;
  }
  ShapeList all;
  const uint32_t type = value.is_array() ? kArray : kObject;
  for (const Shape& shape : shapes) {
    Shape other = shape;
    other.types &= ~type;
    if (other.types != 0) all.push_back(other);
    if ((shape.types & type) == 0) continue;
    Shape same = shape;
    same.types = type;
    if (value.is_array()) {
      Shape longer = same;
      longer.min_items = std::max<uint64_t>(longer.min_items, value.size() + 1);
      all.push_back(std::move(longer));
      if (!value.empty()) {
        Shape shorter = same;
        shorter.max_items = std::min<uint64_t>(shorter.max_items, value.size() - 1);
        all.push_back(std::move(shorter));
      }
      for (size_t i = 0; i < value.size(); ++i) {
        Shape differs = same;
        Shape::Items items;
        items.prefix.resize(i);
        items.prefix.push_back({{&ConstSchema(value[i]), true}});
        differs.items.push_back(std::move(items));
        differs.min_items = std::max<uint64_t>(differs.min_items, i + 1);
        all.push_back(std::move(differs));
      }
      continue;
    }
    std::vector<std::string> names;
    for (const auto& [name, member] : value.items()) {
      names.push_back(name);
      Shape without = same;
      without.AddProperty(name, {{&Never()}});
      all.push_back(std::move(without));
      Shape differs = same;
      differs.AddProperty(name, {{&ConstSchema(member), true}});
      differs.required.push_back(name);
      all.push_back(std::move(differs));
    }
    Shape more = same;
    more.present.push_back({NamesOutside(names, {}), {}});
    all.push_back(std::move(more));
  }
  shapes = std::move(all);
}

bool SchemaReader::ApplyNegatedArray(ShapeList& shapes, const OrderedJson& schema,
                                     const std::string& keyword, const OrderedJson& value) {
  const bool list = (keyword == "items" && value.is_array()) || keyword == "prefixItems";
  if (keyword == "uniqueItems" && value != OrderedJson(true)) {
    shapes.clear();
  } else if (list) {
    // One of the first items does not fulfil its schema.
    ShapeList all;
    for (size_t i = 0; i < value.size(); ++i) {
      for (Shape shape : shapes) {
        Shape::Items items;
        items.prefix.resize(i);
        items.prefix.push_back({{&value[i], true}});
        shape.items.push_back(std::move(items));
        shape.min_items = std::max<uint64_t>(shape.min_items, i + 1);
        all.push_back(std::move(shape));
      }
    }
    shapes = std::move(all);
  } else if (keyword == "items" && schema.contains("prefixItems")) {
    // An item after the first ones does not fulfil `value`: known where that allows no item at all.
    if (value != OrderedJson(false)) return false;
    for (Shape& shape : shapes) {
      shape.min_items = std::max<uint64_t>(shape.min_items, schema["prefixItems"].size() + 1);
    }
  } else if (keyword == "items") {
    // Some item does not fulfil `value`.
    for (Shape& shape : shapes) shape.AddContains({{{&value, true}}, 1, kUnbounded});
  } else if (keyword == "additionalItems") {
    if (!schema.contains("items") || !schema["items"].is_array()) {
      shapes.clear();
      return true;
    }
    if (value == OrderedJson(true)) {
      shapes.clear();
    } else if (value == OrderedJson(false)) {
      for (Shape& shape : shapes) {
        shape.min_items = std::max<uint64_t>(shape.min_items, schema["items"].size() + 1);
      }
    } else {
      return false;
    }
  } else if (keyword == "contains" && !schema.contains("minContains") &&
             !schema.contains("maxContains")) {
    Shape::Items items;
    items.rest = {{&value, true}};
    for (Shape& shape : shapes) shape.items.push_back(items);
  } else {
    return false;
  }
  return true;
}

bool SchemaReader::ApplyNegatedObject(ShapeList& shapes, const OrderedJson& schema,
                                      const std::string& keyword, const OrderedJson& value) {
  if (keyword == "required" && value.is_array()) {
    ShapeList all;
    for (const OrderedJson& name : value) {
      if (!name.is_string()) Fail("the schema's required has a name that is no string");
      for (Shape shape : shapes) {
        shape.AddProperty(name.get<std::string>(), {{&Never()}});
        all.push_back(std::move(shape));
      }
    }
    shapes = std::move(all);
  } else if (keyword == "required") {  // draft 3
    shapes.clear();
  } else if (keyword == "properties" && value.is_object()) {
    ShapeList all;
    for (const auto& [name, property] : value.items()) {
      if (property == OrderedJson(true) || property == OrderedJson::object()) continue;
      for (Shape shape : shapes) {
        shape.AddProperty(name, {{&property, true}});
        if (std::ranges::find(shape.required, name) == shape.required.end()) {
          shape.required.push_back(name);
        }
        all.push_back(std::move(shape));
      }
    }
    shapes = std::move(all);
  } else if (keyword == "additionalProperties") {
    // Some property is not among the schema's, and its value does not fulfil `value`.
    if (value == OrderedJson(true) || value == OrderedJson::object()) {
      shapes.clear();
      return true;
    }
    std::vector<std::string> names;
    std::vector<Node> patterns;
    if (schema.contains("properties")) {
      for (const auto& [name, property] : schema["properties"].items()) names.push_back(name);
    }
    if (schema.contains("patternProperties")) {
      for (const auto& [pattern, property] : schema["patternProperties"].items()) {
        patterns.push_back(Pattern(pattern));
      }
    }
    const Node outside = NamesOutside(names, patterns);
    for (Shape& shape : shapes) {
      shape.present.push_back(
          {outside, value == OrderedJson(false) ? Demands{} : Demands{{&value, true}}});
    }
  } else if (keyword == "patternProperties" && value.is_object()) {
    ShapeList all;
    for (const auto& [pattern, property] : value.items()) {
      if (property == OrderedJson(true) || property == OrderedJson::object()) continue;
      for (Shape shape : shapes) {
        shape.present.push_back({Pattern(pattern), property == OrderedJson(false)
                                                       ? Demands{}
                                                       : Demands{{&property, true}}});
        all.push_back(std::move(shape));
      }
    }
    shapes = std::move(all);
  } else if (keyword == "propertyNames") {
    const Node outside = NamesOutside({}, {StringLanguage(Demands{{&value}})});
    for (Shape& shape : shapes) shape.present.push_back({outside, {}});
  } else {
    return false;
  }
  return true;
}

bool SchemaReader::ApplyNegatedCombination(ShapeList& shapes, const OrderedJson& schema,
                                           const std::string& keyword, const OrderedJson& value) {
  // The shapes for which one of several things holds.
  ShapeList all;
  const auto either = [&](std::initializer_list<Demand> demands) {
    ShapeList some = shapes;
    for (const Demand& demand : demands) Apply(some, demand);
    all.insert(all.end(), some.begin(), some.end());
  };
  if (keyword == "$ref") {
    if (!value.is_string()) Fail("a $ref of the schema is no string");
    Apply(shapes, {&Resolve(value, schema), true});
    return true;
  }
  if (keyword == "minContains" || keyword == "maxContains") {
    shapes.clear();  // read with contains
    return true;
  }
  if (keyword == "not") {
    Apply(shapes, {&value});
    return true;
  }
  if (keyword == "anyOf") {
    for (const OrderedJson& branch : value) Apply(shapes, {&branch, true});
    return true;
  }
  if (keyword == "allOf") {
    for (const OrderedJson& branch : value) either({{&branch, true}});
  } else if (keyword == "oneOf") {
    // No branch holds, or two do.
    ShapeList none = shapes;
    for (const OrderedJson& branch : value) Apply(none, {&branch, true});
    all = std::move(none);
    for (size_t i = 0; i < value.size(); ++i) {
      for (size_t k = 0; k < i; ++k) either({{&value[i]}, {&value[k]}});
    }
  } else if (keyword == "if") {
    if (schema.contains("then")) either({{&value}, {&schema["then"], true}});
    if (schema.contains("else")) either({{&value, true}, {&schema["else"], true}});
  } else if (keyword == "dependentRequired" || keyword == "dependentSchemas" ||
             keyword == "dependencies") {
    for (const auto& [name, needs] : value.items()) {
      ShapeList some = shapes;
      for (Shape& shape : some) {
        if (std::ranges::find(shape.required, name) == shape.required.end()) {
          shape.required.push_back(name);
        }
      }
      if (needs.is_object() || needs.is_boolean()) {
        Apply(some, {&needs, true});
      } else {
        ApplyNegatedObject(some, schema, "required",
                           needs.is_string() ? OrderedJson::array({needs}) : needs);
      }
      all.insert(all.end(), some.begin(), some.end());
    }
  } else {
    return false;
  }
  shapes = std::move(all);
  return true;
}

}  // namespace loopspec::grammar

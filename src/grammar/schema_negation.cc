// What does not fulfil a schema: one of its keywords fails.
#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
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

// Draft 4 says with a boolean that a bound is exclusive.
bool OldExclusive(const OrderedJson& schema) {
  return (schema.contains("exclusiveMinimum") && schema["exclusiveMinimum"].is_boolean()) ||
         (schema.contains("exclusiveMaximum") && schema["exclusiveMaximum"].is_boolean());
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

void SchemaReader::ApplyNegated(ShapeList& shapes, const OrderedJson& schema) {
  ShapeList all;
  for (const auto& [keyword, value] : schema.items()) {
    if (SaysNothing(keyword)) continue;
    if (old_references_ && schema.contains("$ref") && keyword != "$ref") continue;
    // Values of other types fulfil the keyword whatever they are.
    ShapeList some = shapes;
    for (Shape& shape : some) shape.types &= TypesOfKeyword(keyword);
    std::erase_if(some, [](const Shape& shape) { return shape.types == 0; });
    if (some.empty()) continue;
    if (!ApplyNegatedKeyword(some, schema, keyword, value)) {
      Unsupported("not");
      return;  // ignored
    }
    all.insert(all.end(), some.begin(), some.end());
  }
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
    for (Shape& shape : shapes) shape.excluded.push_back(&value);
  } else if (keyword == "enum") {
    for (Shape& shape : shapes) {
      for (const OrderedJson& item : value) shape.excluded.push_back(&item);
    }
  } else if (keyword == "$ref") {
    if (!value.is_string()) Fail("a $ref of the schema is no string");
    Apply(shapes, {&Resolve(value), true});
  } else if (keyword == "not") {
    Apply(shapes, {&value});
  } else if (keyword == "anyOf") {
    for (const OrderedJson& branch : value) Apply(shapes, {&branch, true});
  } else if (keyword == "allOf") {
    ShapeList all;
    for (const OrderedJson& branch : value) {
      ShapeList some = shapes;
      Apply(some, {&branch, true});
      all.insert(all.end(), some.begin(), some.end());
    }
    shapes = std::move(all);
  } else if (keyword == "required" && value.is_array()) {
    only(kObject);
    ShapeList all;
    for (const OrderedJson& name : value) {
      if (!name.is_string()) Fail("the schema's required has a name that is no string");
      for (Shape shape : shapes) {
        shape.properties.push_back({{{name.get<std::string>(), {{&Never()}}}}, {}, {}});
        all.push_back(std::move(shape));
      }
    }
    shapes = std::move(all);
  } else if (keyword == "properties") {
    only(kObject);
    ShapeList all;
    for (const auto& [name, property] : value.items()) {
      for (Shape shape : shapes) {
        shape.properties.push_back({{{name, {{&property, true}}}}, {}, {}});
        if (std::ranges::find(shape.required, name) == shape.required.end()) {
          shape.required.push_back(name);
        }
        all.push_back(std::move(shape));
      }
    }
    shapes = std::move(all);
  } else if (keyword == "additionalProperties" && value == OrderedJson(false) &&
             !schema.contains("patternProperties")) {
    // Some property is none of the schema's. Where only few can be there, it is one of them.
    ShapeList all;
    for (const Shape& shape : shapes) {
      const auto closed = std::ranges::find_if(shape.properties, [](const auto& group) {
        return group.patterns.empty() && group.additional.size() == 1 &&
               *group.additional.front().schema == OrderedJson(group.additional.front().negated);
      });
      if (closed == shape.properties.end()) return false;
      for (const auto& [name, demands] : closed->named) {
        if (schema.contains("properties") && schema["properties"].contains(name)) continue;
        all.push_back(shape);
        if (std::ranges::find(shape.required, name) == shape.required.end()) {
          all.back().required.push_back(name);
        }
      }
    }
    shapes = std::move(all);
  } else if (keyword == "items" && !value.is_array() && !schema.contains("prefixItems")) {
    // Some item is not so.
    only(kArray);
    for (Shape& shape : shapes) shape.contains.push_back({{&value, true}});
  } else if (keyword == "pattern" && value.is_string()) {
    only(kString);
    const Node outside = regular_.Not(Pattern(value));
    for (Shape& shape : shapes) shape.texts.push_back(outside);
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
  } else if ((keyword == "minimum" || keyword == "exclusiveMinimum" || keyword == "maximum" ||
              keyword == "exclusiveMaximum") &&
             value.is_number() && !OldExclusive(schema)) {
    only(kNumber);
    static const std::pair<const char*, const char*> kOpposite[] = {
        {"minimum", "exclusiveMaximum"},
        {"exclusiveMinimum", "maximum"},
        {"maximum", "exclusiveMinimum"},
        {"exclusiveMaximum", "minimum"}};
    for (const auto& [name, opposite] : kOpposite) {
      if (keyword == name) ApplyNumber(shapes, OrderedJson::object(), opposite, value);
    }
  } else {
    return false;
  }
  return true;
}

}  // namespace loopspec::grammar

#include "grammar/schema_shapes.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/utf8.h"
#include "grammar/characters.h"
#include "grammar/formats.h"
#include "grammar/pattern.h"

namespace loopspec::grammar {
namespace {

// Shapes of one schema: anyOf beside anyOf multiplies.
constexpr size_t kMaxShapes = 2000;
// Schemas applied to a shape: references can make exponentially many of a few.
constexpr size_t kMaxSteps = 1'000'000;
// Pairs of branches of a oneOf that are compared.
constexpr size_t kMaxBranches = 200;
constexpr uint64_t kMaxBound = 1'000'000;

// Keywords that assert something which an automaton cannot keep.
const std::set<std::string, std::less<>>& Unenforceable() {
  static const std::set<std::string, std::less<>> names{"extends", "disallow", "divisibleBy"};
  return names;
}

// Keywords that drafts up to the seventh do not know: there they are annotations.
bool IsNew(const std::string& keyword) {
  static const std::set<std::string, std::less<>> names{
      "unevaluatedItems", "unevaluatedProperties", "minContains",
      "maxContains",      "dependentSchemas",      "dependentRequired",
      "$dynamicRef",      "$recursiveRef",         "prefixItems"};
  return names.contains(keyword);
}

uint32_t TypeBits(const OrderedJson& name) {
  static const std::map<std::string, uint32_t, std::less<>> bits{
      {"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger}, {"number", kNumber},
      {"string", kString}, {"array", kArray},     {"object", kObject},   {"any", kAnyType}};
  if (!name.is_string()) Fail("a type of the schema is {}, not a name", name.dump().substr(0, 100));
  const auto found = bits.find(name.get_ref<const std::string&>());
  if (found == bits.end()) Fail("the schema has the unknown type {}", name.dump().substr(0, 100));
  return found->second;
}

uint64_t Count(const std::string& keyword, const OrderedJson& value) {
  if (value.is_number_float() && value.get<double>() >= 0 && value.get<double>() <= kMaxBound &&
      value.get<double>() == static_cast<double>(static_cast<uint64_t>(value.get<double>()))) {
    return static_cast<uint64_t>(value.get<double>());
  }
  if (!value.is_number_unsigned()) {
    Fail("the schema's {} is {}, expected a whole number from 0 on", keyword,
         value.dump().substr(0, 100));
  }
  return value.get<uint64_t>();
}

uint64_t UpperCount(const std::string& keyword, const OrderedJson& value) {
  const uint64_t count = Count(keyword, value);
  return count > kMaxBound ? kUnbounded : count;
}
uint64_t LowerCount(const std::string& keyword, const OrderedJson& value) {
  const uint64_t count = Count(keyword, value);
  if (count > kMaxBound) {
    Fail("the schema's {} is {}, the most allowed is {}", keyword, count, kMaxBound);
  }
  return count;
}

[[noreturn]] void RefuseShapes() {
  Fail("the schema's combinations come to more than {} shapes, which is the most allowed",
       kMaxShapes);
}

void ExpectArray(const std::string& keyword, const OrderedJson& value) {
  if (!value.is_array()) {
    Fail("the schema's {} is {}, expected an array", keyword, value.dump().substr(0, 100));
  }
}
void ExpectObject(const std::string& keyword, const OrderedJson& value) {
  if (!value.is_object()) {
    Fail("the schema's {} is {}, expected an object", keyword, value.dump().substr(0, 100));
  }
}

}  // namespace

void Add(Demands& demands, const Demand& demand) {
  if (std::ranges::find(demands, demand) == demands.end()) demands.push_back(demand);
}
void Add(Demands& demands, const Demands& more) {
  for (const Demand& demand : more) Add(demands, demand);
}

Demands Shape::PropertyDemands(Regular& regular, const std::string& name) const {
  Demands all;
  const std::string quoted = QuotedJson(name);
  const std::string_view content = std::string_view(quoted).substr(1, quoted.size() - 2);
  for (const Properties& group : properties) {
    bool matched = false;
    for (const auto& [property, demands] : group.named) {
      if (property != name) continue;
      Add(all, demands);
      matched = true;
    }
    for (const auto& [pattern, demands] : group.patterns) {
      if (!regular.Matches(pattern, content)) continue;
      Add(all, demands);
      matched = true;
    }
    if (!matched) Add(all, group.additional);
  }
  return all;
}

SchemaReader::SchemaReader(const OrderedJson& root, const SchemaOptions& options, Regular& regular)
    : root_(root), options_(options), regular_(regular) {
  character_ = CharacterNode(regular, CharacterSet::All(), Writing::kJsonString);
  regular.CountCharacters(character_);
  if (root.is_object() && root.contains("$schema") && root["$schema"].is_string()) {
    const std::string draft = root["$schema"];
    for (const char* old : {"draft-03", "draft-04", "draft-05", "draft-06", "draft-07"}) {
      old_references_ = old_references_ || draft.find(old) != std::string::npos;
    }
  }
  resources_.push_back({&root, ""});
  FindIds(root, 0, 0);
}

void SchemaReader::Unsupported(std::string_view keyword) {
  if (options_.strict) Fail("the schema's keyword {} cannot be enforced here", keyword);
  if (std::ranges::find(ignored_, keyword) == ignored_.end()) ignored_.emplace_back(keyword);
}

Node SchemaReader::Pattern(const std::string& pattern) {
  const auto known = patterns_.find(pattern);
  if (known != patterns_.end()) return known->second;
  const Node node = ParsePattern(regular_, pattern, Writing::kJsonString, Anchoring::kSearch);
  patterns_.emplace(pattern, node);
  return node;
}

const std::vector<Shape>& SchemaReader::Shapes(const Demands& demands) {
  const auto known = known_.find(demands);
  if (known != known_.end()) return known->second;
  if (!open_.insert(demands).second) Fail("a schema must be known to know itself");
  // A schema within one that is being read starts anew: it may contain what contains it.
  std::vector<Demand> outer;
  outer.swap(references_);
  ShapeList shapes(1);
  for (const Demand& demand : demands) Apply(shapes, demand);
  references_.swap(outer);
  open_.erase(demands);
  return known_.emplace(demands, std::move(shapes)).first->second;
}

void SchemaReader::Apply(ShapeList& shapes, const Demand& demand) {
  if (shapes.empty()) return;
  const OrderedJson& schema = *demand.schema;
  if (schema.is_boolean()) {
    if (schema.get<bool>() == demand.negated) shapes.clear();
    return;
  }
  if (!schema.is_object()) {
    Fail("a schema is {}, expected an object or a boolean", schema.dump().substr(0, 100));
  }
  if (references_.size() > 300) Fail("the schema's keywords are nested too deeply");
  steps_ += shapes.size();
  if (steps_ > kMaxSteps) {
    Fail("the schema takes more than {} steps to read, which is the most allowed", kMaxSteps);
  }
  if (std::ranges::find(references_, demand) != references_.end()) {
    Fail("a $ref of the schema leads to itself");
  }
  references_.push_back(demand);
  if (demand.negated) {
    ApplyNegated(shapes, schema);
  } else {
    ApplySchema(shapes, schema);
  }
  references_.pop_back();
  std::erase_if(shapes, [](const Shape& shape) { return shape.types == 0; });
  if (shapes.size() > kMaxShapes) RefuseShapes();
}

void SchemaReader::ApplySchema(ShapeList& shapes, const OrderedJson& schema) {
  if (old_references_ && schema.contains("$ref")) {
    ApplyKeyword(shapes, schema, "$ref", schema["$ref"]);
    return;
  }
  bool objects = false;
  const bool unevaluated = !old_references_ && (schema.contains("unevaluatedProperties") ||
                                                schema.contains("unevaluatedItems"));
  const uint32_t since = serial_;
  unevaluated_ += unevaluated ? 1 : 0;
  for (const auto& [keyword, value] : schema.items()) {
    // Three keywords that refer to each other, once.
    if (keyword == "properties" || keyword == "patternProperties" ||
        keyword == "additionalProperties") {
      if (!objects) ApplyKeyword(shapes, schema, "properties", value);
      objects = true;
      continue;
    }
    ApplyKeyword(shapes, schema, keyword, value);
  }
  if (unevaluated) {
    --unevaluated_;
    ApplyUnevaluated(shapes, schema, since);
  }
}

// Properties and items that no keyword of the schema, or of the schemas that hold beside it, has
// said anything about: those are the groups that were added since.
void SchemaReader::ApplyUnevaluated(ShapeList& shapes, const OrderedJson& schema, uint32_t since) {
  for (Shape& shape : shapes) {
    if (schema.contains("unevaluatedProperties")) {
      Shape::Properties rest;
      for (const Shape::Properties& group : shape.properties) {
        if (group.serial <= since) continue;
        rest.all = rest.all || group.all;
        for (const auto& [name, demands] : group.named) rest.named.push_back({name, {}});
        for (const auto& [pattern, demands] : group.patterns)
          rest.patterns.push_back({pattern, {}});
      }
      if (!rest.all) {
        rest.additional = {{&schema["unevaluatedProperties"]}};
        rest.serial = negations_ == 0 ? ++serial_ : 0;
        rest.all = true;
        shape.properties.push_back(std::move(rest));
      }
    }
    if (schema.contains("unevaluatedItems")) {
      if (!shape.contains.empty()) Unsupported("unevaluatedItems");
      Shape::Items rest;
      for (const Shape::Items& group : shape.items) {
        if (group.serial <= since) continue;
        rest.all = rest.all || group.all;
        rest.prefix.resize(std::max(rest.prefix.size(), group.prefix.size()));
      }
      if (!rest.all) {
        rest.rest = {{&schema["unevaluatedItems"]}};
        rest.serial = negations_ == 0 ? ++serial_ : 0;
        rest.all = true;
        shape.items.push_back(std::move(rest));
      }
    }
  }
}

void SchemaReader::ApplyKeyword(ShapeList& shapes, const OrderedJson& schema,
                                const std::string& keyword, const OrderedJson& value) {
  if (old_references_ && IsNew(keyword)) return;
  if (keyword == "type") {
    uint32_t types = 0;
    if (value.is_array()) {
      for (const OrderedJson& type : value) types |= TypeBits(type);
    } else {
      types = TypeBits(value);
    }
    for (Shape& shape : shapes) shape.types &= types;
  } else if (keyword == "enum" || keyword == "const") {
    std::vector<const OrderedJson*> values{&value};
    if (keyword == "enum") {
      ExpectArray(keyword, value);
      values.clear();
      for (const OrderedJson& item : value) values.push_back(&item);
    }
    for (Shape& shape : shapes) {
      if (!shape.values) {
        shape.values = values;
      } else {
        std::erase_if(*shape.values, [&](const OrderedJson* old) {
          return std::ranges::none_of(values, [&](const OrderedJson* v) { return *v == *old; });
        });
      }
    }
  } else if (Unenforceable().contains(keyword)) {
    Unsupported(keyword);
  } else if (!ApplyNumber(shapes, schema, keyword, value) && !ApplyString(shapes, keyword, value) &&
             !ApplyArray(shapes, schema, keyword, value) &&
             !ApplyObject(shapes, schema, keyword, value)) {
    ApplyCombination(shapes, schema, keyword, value);  // all others are annotations
  }
}

bool SchemaReader::ApplyNumber(ShapeList& shapes, const OrderedJson& schema,
                               const std::string& keyword, const OrderedJson& value) {
  const bool min = keyword == "minimum" || keyword == "exclusiveMinimum";
  const bool max = keyword == "maximum" || keyword == "exclusiveMaximum";
  const bool multiple = keyword == "multipleOf";
  if (!min && !max && !multiple) return false;
  bool exclusive = keyword.starts_with("exclusive");
  if (exclusive && value.is_boolean()) return true;  // draft 4: read with the bound
  if (!value.is_number()) {
    Fail("the schema's {} is {}, expected a number", keyword, value.dump().substr(0, 100));
  }
  const Decimal bound = DecimalOf(value);
  if (!exclusive && !multiple) {
    const std::string old = min ? "exclusiveMinimum" : "exclusiveMaximum";
    exclusive = schema.contains(old) && schema[old] == OrderedJson(true);
  }
  for (Shape& shape : shapes) {
    NumberBounds& number = shape.number;
    if (multiple) {
      number.multiples.push_back(bound);
    } else if (min) {
      const int order = number.min ? Compare(bound, *number.min) : 1;
      if (order >= 0) {
        number.exclusive_min = order == 0 ? number.exclusive_min || exclusive : exclusive;
        number.min = bound;
      }
    } else {
      const int order = number.max ? Compare(bound, *number.max) : -1;
      if (order <= 0) {
        number.exclusive_max = order == 0 ? number.exclusive_max || exclusive : exclusive;
        number.max = bound;
      }
    }
  }
  return true;
}

bool SchemaReader::ApplyString(ShapeList& shapes, const std::string& keyword,
                               const OrderedJson& value) {
  if (keyword == "minLength") {
    const uint64_t count = LowerCount(keyword, value);
    for (Shape& shape : shapes) shape.min_length = std::max(shape.min_length, count);
  } else if (keyword == "maxLength") {
    const uint64_t count = UpperCount(keyword, value);
    for (Shape& shape : shapes) shape.max_length = std::min(shape.max_length, count);
  } else if (keyword == "pattern") {
    if (!value.is_string()) Fail("the schema's pattern is no string");
    const Node node = Pattern(value);
    for (Shape& shape : shapes) shape.texts.push_back(node);
  } else if (keyword == "format") {
    if (!value.is_string()) return true;
    const auto pattern = FormatPattern(value.get_ref<const std::string&>());
    if (!pattern) return true;
    const Node node = Pattern("^(?:" + *pattern + ")$");
    for (Shape& shape : shapes) shape.texts.push_back(node);
  } else {
    return false;
  }
  return true;
}

bool SchemaReader::ApplyArray(ShapeList& shapes, const OrderedJson& schema,
                              const std::string& keyword, const OrderedJson& value) {
  if (keyword == "minItems") {
    const uint64_t count = LowerCount(keyword, value);
    for (Shape& shape : shapes) shape.min_items = std::max(shape.min_items, count);
  } else if (keyword == "maxItems") {
    const uint64_t count = UpperCount(keyword, value);
    for (Shape& shape : shapes) shape.max_items = std::min(shape.max_items, count);
  } else if (keyword == "uniqueItems") {
    for (Shape& shape : shapes) shape.unique = shape.unique || value == OrderedJson(true);
  } else if (keyword == "contains") {
    Shape::Contains contains{{{&value}}, 1, kUnbounded};
    if (!old_references_ && schema.contains("minContains")) {
      contains.min = LowerCount("minContains", schema["minContains"]);
    }
    if (!old_references_ && schema.contains("maxContains")) {
      contains.max = UpperCount("maxContains", schema["maxContains"]);
    }
    for (Shape& shape : shapes) {
      if (contains.min > 0 || contains.max != kUnbounded) shape.AddContains(contains);
    }
  } else if (keyword == "prefixItems" || keyword == "items" || keyword == "additionalItems") {
    // `items` as an array is what prefixItems was called up to draft 2019.
    const bool list = keyword == "items" && value.is_array();
    Shape::Items items;
    if (keyword == "prefixItems" || list) {
      ExpectArray(keyword, value);
      for (const OrderedJson& item : value) items.prefix.push_back({{&item}});
      const char* rest = list ? "additionalItems" : "items";
      if (schema.contains(rest)) {
        items.rest = {{&schema[rest]}};
        items.all = true;
      }
    } else if (keyword == "items") {
      if (schema.contains("prefixItems") && !old_references_) return true;
      items.rest = {{&value}};
      items.all = true;
    } else {
      return true;  // additionalItems: read with items
    }
    items.serial = negations_ == 0 ? ++serial_ : 0;
    const Shared<Shape::Items> shared(std::move(items));
    for (Shape& shape : shapes) shape.items.push_back(shared);
  } else {
    return false;
  }
  return true;
}

bool SchemaReader::ApplyObject(ShapeList& shapes, const OrderedJson& schema,
                               const std::string& keyword, const OrderedJson& value) {
  if (keyword == "minProperties") {
    const uint64_t count = LowerCount(keyword, value);
    for (Shape& shape : shapes) shape.min_properties = std::max(shape.min_properties, count);
  } else if (keyword == "maxProperties") {
    const uint64_t count = UpperCount(keyword, value);
    for (Shape& shape : shapes) shape.max_properties = std::min(shape.max_properties, count);
  } else if (keyword == "required") {
    if (value.is_boolean()) return true;  // draft 3, about the property itself
    ExpectArray(keyword, value);
    for (const OrderedJson& name : value) {
      if (!name.is_string()) Fail("the schema's required has a name that is no string");
      for (Shape& shape : shapes) {
        if (std::ranges::find(shape.required, name.get_ref<const std::string&>()) ==
            shape.required.end()) {
          shape.required.push_back(name);
        }
      }
    }
  } else if (keyword == "propertyNames") {
    for (Shape& shape : shapes) shape.names.push_back({{&value}});
  } else if (keyword == "properties") {
    Shape::Properties group;
    if (schema.contains("properties")) {
      ExpectObject("properties", schema["properties"]);
      for (const auto& [name, property] : schema["properties"].items()) {
        group.named.push_back({name, {{&property}}});
      }
    }
    if (schema.contains("patternProperties")) {
      ExpectObject("patternProperties", schema["patternProperties"]);
      for (const auto& [pattern, property] : schema["patternProperties"].items()) {
        group.patterns.push_back({Pattern(pattern), {{&property}}});
      }
    }
    if (schema.contains("additionalProperties")) {
      group.additional = {{&schema["additionalProperties"]}};
      group.all = true;
    }
    group.serial = negations_ == 0 ? ++serial_ : 0;
    const Shared<Shape::Properties> shared(std::move(group));
    for (Shape& shape : shapes) shape.properties.push_back(shared);
  } else {
    return false;
  }
  return true;
}

bool SchemaReader::ApplyCombination(ShapeList& shapes, const OrderedJson& schema,
                                    const std::string& keyword, const OrderedJson& value) {
  if (keyword == "$ref") {
    if (!value.is_string()) Fail("a $ref of the schema is no string");
    Apply(shapes, {&Resolve(value, schema)});
  } else if (keyword == "$dynamicRef" || keyword == "$recursiveRef") {
    if (!value.is_string()) Fail("a {} of the schema is no string", keyword);
    // Where one schema alone can be meant it is an ordinary reference.
    const auto& text = value.get_ref<const std::string&>();
    const int anchors = dynamic_anchors_[text.substr(std::min(text.find('#'), text.size()))];
    if (anchors > 1 || (anchors == 1 && resources_.size() > 1)) Unsupported(keyword);
    Apply(shapes, {&Resolve(value, schema)});
  } else if (keyword == "allOf") {
    ExpectArray(keyword, value);
    for (const OrderedJson& branch : value) Apply(shapes, {&branch});
  } else if (keyword == "anyOf") {
    ExpectArray(keyword, value);
    ApplyAnyOf(shapes, value, unevaluated_ > 0);
  } else if (keyword == "oneOf") {
    ExpectArray(keyword, value);
    ApplyOneOf(shapes, value);
  } else if (keyword == "not") {
    Apply(shapes, {&value, true});
  } else if (keyword == "if") {
    if (!schema.contains("then") && !schema.contains("else") && unevaluated_ == 0) return true;
    ShapeList holds = shapes;
    Apply(holds, {&value});
    if (schema.contains("then")) Apply(holds, {&schema["then"]});
    Apply(shapes, {&value, true});
    if (schema.contains("else")) Apply(shapes, {&schema["else"]});
    shapes.insert(shapes.end(), holds.begin(), holds.end());
  } else if (keyword == "dependentRequired" || keyword == "dependentSchemas" ||
             keyword == "dependencies") {
    ExpectObject(keyword, value);
    for (const auto& [name, needs] : value.items()) ApplyDependency(shapes, name, needs);
  } else {
    return false;
  }
  return true;
}

// `all_that_hold`: also shapes for several branches that hold together, since each of them says
// something about other properties.
void SchemaReader::ApplyAnyOf(ShapeList& shapes, const OrderedJson& branches, bool all_that_hold) {
  ShapeList all;
  for (const OrderedJson& branch : branches) {
    ShapeList some = shapes;
    Apply(some, {&branch});
    if (all_that_hold) {
      ShapeList with_earlier = all;
      Apply(with_earlier, {&branch});
      std::erase_if(with_earlier, [&](const Shape& shape) { return Impossible(shape, 0); });
      some.insert(some.end(), with_earlier.begin(), with_earlier.end());
    }
    all.insert(all.end(), some.begin(), some.end());
    if (all.size() > kMaxShapes) RefuseShapes();
  }
  shapes = std::move(all);
}

void SchemaReader::ApplyDependency(ShapeList& shapes, const std::string& name,
                                   const OrderedJson& needs) {
  static const OrderedJson kNever = false;
  ShapeList without = shapes;
  for (Shape& shape : without) {
    shape.AddProperty(name, {{&kNever}});
  }
  for (Shape& shape : shapes) {
    // What is no object has no property.
    shape.types &= kObject;
    if (std::ranges::find(shape.required, name) == shape.required.end()) {
      shape.required.push_back(name);
    }
  }
  if (needs.is_array()) {
    ApplyObject(shapes, OrderedJson::object(), "required", needs);
  } else if (needs.is_string()) {
    ApplyObject(shapes, OrderedJson::object(), "required", OrderedJson::array({needs}));
  } else {
    Apply(shapes, {&needs});
  }
  shapes.insert(shapes.end(), without.begin(), without.end());
  if (shapes.size() > kMaxShapes) RefuseShapes();
}

void SchemaReader::ApplyOneOf(ShapeList& shapes, const OrderedJson& branches) {
  std::vector<ShapeList> each;
  if (branches.size() > kMaxBranches) {
    Fail("a oneOf of the schema has {} branches, the most allowed is {}", branches.size(),
         kMaxBranches);
  }
  for (const OrderedJson& branch : branches) {
    each.push_back(shapes);
    Apply(each.back(), {&branch});
  }
  // Where two branches have a value in common, each must exclude the other's.
  ShapeList all;
  for (size_t i = 0; i < each.size(); ++i) {
    ShapeList mine = each[i];
    for (size_t k = 0; k < each.size() && !mine.empty(); ++k) {
      if (k == i) continue;
      ShapeList both = each[i];
      Apply(both, {&branches[k]});
      if (std::ranges::all_of(both, [&](const Shape& shape) { return Impossible(shape, 0); })) {
        continue;
      }
      const SchemaOptions kept = options_;
      const std::vector<Demand> references = references_;
      const std::set<Demands> open = open_;
      const int negations = negations_;
      const int unevaluated = unevaluated_;
      const bool narrow = narrow_not_;
      ShapeList apart = mine;
      try {
        options_.strict = true;
        narrow_not_ = true;
        Apply(apart, {&branches[k], true});
        options_ = kept;
        narrow_not_ = narrow;
      } catch (const Error&) {
        options_ = kept;
        references_ = references;
        open_ = open;
        negations_ = negations;
        unevaluated_ = unevaluated;
        narrow_not_ = narrow;
        Unsupported("oneOf");
        continue;
      }
      mine = std::move(apart);
    }
    all.insert(all.end(), mine.begin(), mine.end());
  }
  shapes = std::move(all);
}

}  // namespace loopspec::grammar

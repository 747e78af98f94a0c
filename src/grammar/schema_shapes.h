// A JSON schema as a choice of shapes: what `allOf`, `$ref`, `anyOf`, `not` and the rest come to
// when they are put together. A shape has no such keywords left but in the schemas of its parts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "grammar/grammar.h"
#include "grammar/number_language.h"
#include "grammar/regular.h"

namespace loopspec::grammar {

// A schema that holds, or (negated) does not.
struct Demand {
  const OrderedJson* schema;
  bool negated = false;
  auto operator<=>(const Demand&) const = default;
};
// All of them hold, each once. Empty: anything.
using Demands = std::vector<Demand>;
void Add(Demands& demands, const Demand& demand);
void Add(Demands& demands, const Demands& more);

// Kinds of values, as bits.
enum ValueType : uint32_t {
  kNull = 1,
  kBoolean = 2,
  kInteger = 4,
  kFraction = 8,  // a number that is no integer
  kString = 16,
  kArray = 32,
  kObject = 64,
  kNumber = kInteger | kFraction,
  kAnyType = 127,
};

// What shapes have in common: copies of a shape are many, and what a schema says about its
// properties may be long. Never changed.
template <typename T>
class Shared {
 public:
  Shared(T value) : value_(std::make_shared<const T>(std::move(value))) {}
  operator const T&() const { return *value_; }

 private:
  std::shared_ptr<const T> value_;
};

struct Shape {
  uint32_t types = kAnyType;
  std::optional<std::vector<const OrderedJson*>> values;  // one of these
  std::vector<const OrderedJson*> excluded;               // and none of these

  NumberBounds number;

  uint64_t min_length = 0;
  uint64_t max_length = kUnbounded;
  // The text without its quotes. Each holds.
  std::vector<Node> texts;

  // The keywords of one schema for arrays, and for objects: they refer to each other.
  struct Items {
    std::vector<Demands> prefix;
    Demands rest;
    // For unevaluatedItems: when it was added; 0 when it evaluates nothing. `all`: it evaluates
    // every item, not only the first ones.
    uint32_t serial = 0;
    bool all = false;
  };
  std::vector<Shared<Items>> items;
  // How many items fulfil the demands.
  struct Contains {
    Demands demands;
    uint64_t min = 1;
    uint64_t max = kUnbounded;
    bool operator==(const Contains&) const = default;
  };
  std::vector<Contains> contains;  // each once
  void AddContains(const Contains& more) {
    if (std::ranges::find(contains, more) == contains.end()) contains.push_back(more);
  }
  uint64_t min_items = 0;
  uint64_t max_items = kUnbounded;
  bool unique = false;

  struct Properties {
    std::vector<std::pair<std::string, Demands>> named;
    std::vector<std::pair<Node, Demands>> patterns;  // the name without its quotes
    Demands additional;
    // For unevaluatedProperties: when it was added; 0 when it evaluates nothing. `all`: it
    // evaluates every property, not only those that it names.
    uint32_t serial = 0;
    bool all = false;
  };
  std::vector<Shared<Properties>> properties;
  // One more demand, on the value of one property.
  void AddProperty(std::string name, Demands value) {
    properties.push_back(Properties{{{std::move(name), std::move(value)}}, {}, {}});
  }
  std::vector<std::string> required;
  // A property with such a name, without its quotes, is there, and fulfils the demands.
  struct Present {
    Node names;
    Demands value;
  };
  std::vector<Present> present;
  // The same, where the shape does not list the name.
  std::vector<Present> other_present;
  std::vector<Demands> names;
  uint64_t min_properties = 0;
  uint64_t max_properties = kUnbounded;

  // What all groups say about the property: all that hold for its value.
  Demands PropertyDemands(Regular& regular, const std::string& name) const;
};

// Whether a keyword says nothing about a value: a title, a comment, an unknown one.
bool SaysNothing(const std::string& keyword);

class SchemaReader {
 public:
  // `root` must outlive the reader.
  SchemaReader(const OrderedJson& root, const SchemaOptions& options, Regular& regular);

  // Throws Error for a keyword that cannot be enforced, or for what is no schema.
  const std::vector<Shape>& Shapes(const Demands& demands);
  // Whether no value fulfils them, as far as this can be seen in a few steps.
  bool Impossible(const Demands& demands, int depth = 0);
  bool Impossible(const Shape& shape, int depth);
  // Whether the value fulfils them.
  bool Fulfils(const OrderedJson& value, const Demands& demands);
  bool Fulfils(const OrderedJson& value, const Shape& shape);
  // The schema that it refers to, where it does nothing else.
  Demand Target(Demand demand);
  // The texts of a string, without the quotes.
  Node StringLanguage(const Shape& shape);
  Node StringLanguage(const Demands& demands);
  // One character of a string.
  Node character() const { return character_; }

  // Names the keyword: Error when strict, else it is ignored.
  void Unsupported(std::string_view keyword);
  const std::vector<std::string>& ignored() const { return ignored_; }

 private:
  using ShapeList = std::vector<Shape>;
  // Whether the question leads back to a schema that is being read, or too far from it.
  bool IsOpen(const Demands& demands) const {
    return !known_.contains(demands) && (open_.contains(demands) || open_.size() > 40);
  }
  void Apply(ShapeList& shapes, const Demand& demand);
  void ApplySchema(ShapeList& shapes, const OrderedJson& schema);
  void ApplyKeyword(ShapeList& shapes, const OrderedJson& schema, const std::string& keyword,
                    const OrderedJson& value);
  bool ApplyNumber(ShapeList& shapes, const OrderedJson& schema, const std::string& keyword,
                   const OrderedJson& value);
  bool ApplyString(ShapeList& shapes, const std::string& keyword, const OrderedJson& value);
  bool ApplyArray(ShapeList& shapes, const OrderedJson& schema, const std::string& keyword,
                  const OrderedJson& value);
  bool ApplyObject(ShapeList& shapes, const OrderedJson& schema, const std::string& keyword,
                   const OrderedJson& value);
  bool ApplyCombination(ShapeList& shapes, const OrderedJson& schema, const std::string& keyword,
                        const OrderedJson& value);
  void ApplyOneOf(ShapeList& shapes, const OrderedJson& branches);
  void ApplyDependency(ShapeList& shapes, const std::string& name, const OrderedJson& needs);
  void ApplyNegated(ShapeList& shapes, const OrderedJson& schema);
  bool ApplyNegatedKeyword(ShapeList& shapes, const OrderedJson& schema, const std::string& keyword,
                           const OrderedJson& value);
  bool ApplyNegatedArray(ShapeList& shapes, const OrderedJson& schema, const std::string& keyword,
                         const OrderedJson& value);
  bool ApplyNegatedObject(ShapeList& shapes, const OrderedJson& schema, const std::string& keyword,
                          const OrderedJson& value);
  bool ApplyNegatedNumber(ShapeList& shapes, const OrderedJson& schema, const std::string& keyword,
                          const OrderedJson& value);
  bool ApplyNegatedCombination(ShapeList& shapes, const OrderedJson& schema,
                               const std::string& keyword, const OrderedJson& value);
  void ExcludeValue(ShapeList& shapes, const OrderedJson& value);
  void ApplyUnevaluated(ShapeList& shapes, const OrderedJson& schema, uint32_t since);
  void ApplyAnyOf(ShapeList& shapes, const OrderedJson& branches, bool all_that_hold);
  // The names, without quotes, that are none of these and match none of these patterns.
  Node NamesOutside(const std::vector<std::string>& names, const std::vector<Node>& patterns);
  // A schema {"const": value} that lives as long as the reader.
  const OrderedJson& ConstSchema(const OrderedJson& value);
  // What a reference of the schema means.
  const OrderedJson& Resolve(const std::string& reference, const OrderedJson& schema);
  static const OrderedJson* Follow(const OrderedJson& from, const std::string& pointer);
  void FindIds(const OrderedJson& schema, int depth, uint32_t resource);
  static std::string Absolute(const std::string& base, const std::string& reference);
  Node Pattern(const std::string& pattern);

  const OrderedJson& root_;
  SchemaOptions options_;
  Regular& regular_;
  Node character_;
  bool old_references_ = false;  // up to draft 7: nothing counts beside $ref
  std::map<std::string, const OrderedJson*> ids_;
  // A schema with an address of its own, which references within it are relative to.
  struct Resource {
    const OrderedJson* root;
    std::string base;  // without a fragment
  };
  std::vector<Resource> resources_;                     // the first is the root's
  std::map<const OrderedJson*, uint32_t> resource_of_;  // schemas that refer to others; else 0
  std::map<std::string, int> dynamic_anchors_;          // how many schemas have the name
  std::vector<Demand> references_;                      // being resolved
  std::map<Demands, ShapeList> known_;
  std::set<Demands> open_;  // being read
  std::map<std::string, Node> patterns_;
  std::vector<std::string> ignored_;
  std::map<const OrderedJson*, std::unique_ptr<const OrderedJson>> consts_;
  size_t steps_ = 0;         // schemas applied, each to a shape
  uint32_t serial_ = 0;      // groups of keywords that have been added
  int negations_ = 0;        // being read: what is within evaluates no property
  int unevaluated_ = 0;      // being read: which branches of an anyOf hold matters
  bool narrow_not_ = false;  // a negation may leave out values whose denial cannot be written
};

}  // namespace loopspec::grammar

#include "grammar/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <utility>

#include "base/error.h"
#include "grammar/characters.h"
#include "grammar/number_language.h"
#include "grammar/pattern.h"
#include "grammar/schema_shapes.h"

namespace loopspec::grammar {
namespace {

// Schemas within a schema, each with what others add to it.
constexpr size_t kMaxRules = 50'000;
// Sets of names that patterns divide a name into.
constexpr size_t kMaxNameSets = 64;
// Rules for an array with `contains`, and how many of these keywords.
constexpr size_t kMaxCountedStates = 2000;
constexpr size_t kMaxContains = 3;
constexpr Expression kUnwritten = ~0u;
// Names that an object must have without saying which.
constexpr int kMaxPresent = 6;

// White space between tokens: see JsonSpace.
constexpr uint32_t kMostSpace = 64;
constexpr uint32_t kMostIndent = 32;

// A value's text, compact, for numbers, strings and the like.
std::vector<std::string> ScalarTexts(const OrderedJson& value) {
  if (value.is_string()) return {QuotedJson(value.get_ref<const std::string&>())};
  std::vector<std::string> texts{value.dump()};
  if (value.is_number_float() && texts[0].ends_with(".0")) {
    texts.push_back(texts[0].substr(0, texts[0].size() - 2));
  }
  return texts;
}

class SchemaWriter {
 public:
  SchemaWriter(const OrderedJson& schema, const SchemaOptions& options, Rules& rules)
      : options_(options),
        regular_(rules.regular),
        expressions_(rules.expressions),
        reader_(schema, options, rules.regular) {
    if (options.space == JsonSpace::kAny) {
      space_ = regular_.Repeat(SpaceByte(regular_), 0, kMostSpace);
      space_before_separator_ = space_;
      space_after_colon_ = space_;
    } else if (options.space == JsonSpace::kUsual) {
      const Node blank = regular_.Or({regular_.Byte(' '), regular_.Byte('\t')});
      const Node line =
          regular_.Concat(regular_.Byte('\n'), regular_.Repeat(blank, 0, kMostIndent));
      space_ = regular_.Or({kEmpty, regular_.Byte(' '), line});
      space_after_colon_ = regular_.Optional(regular_.Byte(' '));
    }
    texts_ = Compile({{&schema}});
    while (!pending_.empty()) {
      const auto [demands, rule] = pending_.front();
      pending_.pop_front();
      std::vector<Expression> choices;
      for (const Shape& shape : reader_.Shapes(demands)) choices.push_back(Write(shape));
      expressions_.SetRule(rule, expressions_.Choice(std::move(choices)));
    }
  }

  CompiledSchema result() const { return {texts_, reader_.ignored()}; }

 private:
  Expression Compile(const Demands& given) {
    Demands demands;
    for (const Demand& demand : given) Add(demands, reader_.Target(demand));
    const auto known = rules_.find(demands);
    if (known != rules_.end()) return expressions_.Rule(known->second);
    if (rules_.size() >= kMaxRules) {
      Fail("the schema has more than {} parts, which is the most allowed", kMaxRules);
    }
    const uint32_t rule = expressions_.AddRule();
    rules_.emplace(demands, rule);
    pending_.emplace_back(std::move(demands), rule);
    return expressions_.Rule(rule);
  }

  // A byte with white space around it, where `before` and `after` say so.
  Node Mark(char c, bool before, bool after) {
    const bool separator = c == ':' || c == ',';
    const Node space_before = separator ? space_before_separator_ : space_;
    return regular_.Concat({before ? space_before : kEmpty, regular_.Byte(static_cast<uint8_t>(c)),
                            after ? (c == ':' ? space_after_colon_ : space_) : kEmpty});
  }
  Expression MarkExpression(char c, bool before, bool after) {
    return expressions_.Terminal(Mark(c, before, after));
  }

  Expression Write(const Shape& shape) {
    if (shape.values) return WriteValues(shape);
    std::vector<Expression> choices;
    std::vector<std::string> words;
    for (const char* word : {"null", "true", "false"}) {
      const OrderedJson value = OrderedJson::parse(word);
      if ((shape.types & (value.is_null() ? kNull : kBoolean)) != 0 &&
          reader_.Fulfils(value, shape)) {
        words.emplace_back(word);
      }
    }
    choices.push_back(expressions_.Terminal(regular_.OneOf(words)));
    choices.push_back(WriteNumber(shape));
    if ((shape.types & kString) != 0) {
      choices.push_back(expressions_.Terminal(Quoted(reader_.StringLanguage(shape))));
    }
    if ((shape.types & kArray) != 0) choices.push_back(WriteArray(shape));
    if ((shape.types & kObject) != 0) choices.push_back(WriteObject(shape));
    return expressions_.Choice(std::move(choices));
  }

  Node Quoted(Node content) {
    const Node quote = regular_.Byte('"');
    return regular_.Concat({quote, content, quote});
  }

  Expression WriteValues(const Shape& shape) {
    std::vector<std::string> texts;
    std::vector<Expression> choices;
    for (const OrderedJson* value : *shape.values) {
      if (!reader_.Fulfils(*value, shape)) continue;
      if (value->is_structured()) {
        choices.push_back(Literal(*value));
      } else {
        for (std::string& text : ScalarTexts(*value)) texts.push_back(std::move(text));
      }
    }
    choices.push_back(expressions_.Terminal(regular_.OneOf(texts)));
    return expressions_.Choice(std::move(choices));
  }

  // The value with white space where it may be.
  Expression Literal(const OrderedJson& value) {
    if (!value.is_structured()) {
      return expressions_.Terminal(regular_.OneOf(ScalarTexts(value)));
    }
    const bool object = value.is_object();
    if (object && options_.order == PropertyOrder::kAny && value.size() > 1) {
      ObjectRules rules;
      rules.any_order = true;
      rules.colon = Mark(':', true, true);
      rules.comma = Mark(',', true, true);
      rules.close = Mark('}', true, false);
      rules.close_empty = Mark('}', false, false);
      for (const auto& [key, member] : value.items()) {
        rules.properties.push_back({QuotedJson(key), Literal(member), true, {}, false});
      }
      return expressions_.Sequence(MarkExpression('{', false, true),
                                   expressions_.Members(std::move(rules)));
    }
    std::vector<Expression> parts{MarkExpression(object ? '{' : '[', false, true)};
    bool first = true;
    for (const auto& [key, member] : value.items()) {
      if (!first) parts.push_back(MarkExpression(',', true, true));
      first = false;
      if (object) {
        parts.push_back(expressions_.Terminal(regular_.Text(QuotedJson(key))));
        parts.push_back(MarkExpression(':', true, true));
      }
      parts.push_back(Literal(member));
    }
    parts.push_back(MarkExpression(object ? '}' : ']', !first, false));
    Expression all = kEmptyText;
    for (size_t i = parts.size(); i-- > 0;) all = expressions_.Sequence(parts[i], all);
    return all;
  }

  Node Digits(const std::string& pattern) {
    return ParsePattern(regular_, pattern, Writing::kUtf8, Anchoring::kWhole);
  }

  // Written without an exponent; and of the first 15 digits those after the point are neither all
  // zeros nor all nines, so that a text read as a double is no integer either.
  Node NoIntegers() {
    std::string close = "-?([0-9]{15,}\\.[0-9]*";
    for (size_t before = 1; before < kExactDigits; ++before) {
      const size_t after = kExactDigits - before;
      close += fmt::format("|[0-9]{{{}}}\\.(0{{{}}}|9{{{}}})[0-9]*", before, after, after);
    }
    return regular_.And(
        {Digits("-?[0-9]+\\.[0-9]*[1-9][0-9]*"), regular_.Not(Digits(close + ")"))});
  }

  Expression WriteNumber(const Shape& shape) {
    if ((shape.types & kNumber) == 0) return kNoText;
    std::vector<Node> parts;
    const bool whole = (shape.types & kFraction) == 0;
    parts.push_back(whole ? IntegerLanguage(regular_, shape.number)
                          : NumberLanguage(regular_, shape.number));
    if ((shape.types & kInteger) == 0) parts.push_back(NoIntegers());
    for (const OrderedJson* value : shape.excluded) {
      if (!value->is_number()) continue;
      // The number in every way of writing it but those with an exponent, which go too. Two numbers
      // of at most 15 digits have different doubles; so has such a number beside a longer integer.
      std::string text = ScalarTexts(*value).back();
      if (text.find('e') != std::string::npos) reader_.Unsupported("not");
      parts.push_back(
          Digits(text.size() > kExactDigits ? "-?[0-9.]{1,15}" : "-?([0-9]+|[0-9.]{1,16})"));
      const bool point = text.find('.') != std::string::npos;
      const Node zeros = regular_.Repeat(regular_.Byte('0'), point ? 0 : 1, kUnbounded);
      const Node number = regular_.Concat(
          {text == "0" ? regular_.Optional(regular_.Byte('-')) : kEmpty, regular_.Text(text),
           point ? zeros : regular_.Optional(regular_.Concat(regular_.Byte('.'), zeros))});
      parts.push_back(regular_.Not(number));
    }
    const Node node = regular_.And(std::move(parts));
    return regular_.Alive(node) ? expressions_.Terminal(node) : kNoText;
  }

  Expression WriteArray(const Shape& shape) {
    const auto min = static_cast<uint32_t>(shape.min_items);
    const auto max = static_cast<uint32_t>(std::min<uint64_t>(shape.max_items, kUnbounded));
    if (min > max) return kNoText;
    size_t prefix = 0;
    for (const Shape::Items& items : shape.items) prefix = std::max(prefix, items.prefix.size());
    prefix = std::min<size_t>(prefix, max);
    const auto item = [&](size_t i) {
      Demands all;
      for (const Shape::Items& items : shape.items) {
        Add(all, i < items.prefix.size() ? items.prefix[i] : items.rest);
      }
      return all;
    };
    if (shape.unique && max > 1) {
      if (!shape.contains.empty()) {
        reader_.Unsupported("uniqueItems");
      } else {
        const Expression set = prefix == 0 ? WriteSet(item(0), min, max) : kNoText;
        if (set != kNoText) return set;
        UniqueRules rules;
        for (size_t i = 0; i < prefix; ++i) rules.prefix.push_back(Compile(item(i)));
        rules.rest = prefix < max ? Compile(item(prefix)) : kNoText;
        rules.min = min;
        rules.max = max;
        rules.comma = Mark(',', true, true);
        rules.close = Mark(']', true, false);
        rules.close_empty = Mark(']', false, false);
        return expressions_.Sequence(MarkExpression('[', false, true),
                                     expressions_.Unique(std::move(rules)));
      }
    }
    const Expression comma = MarkExpression(',', true, true);
    const Expression open = MarkExpression('[', false, true);
    const Expression close = MarkExpression(']', true, false);
    if (!shape.contains.empty()) {
      const Expression counted = WriteCounted(shape, prefix, min, max);
      if (counted != kUnwritten) return counted;
      reader_.Unsupported("contains");
    }
    const Expression rest = expressions_.Sequence(comma, Compile(item(prefix)));
    // What follows the first i items, from the end.
    Expression after = expressions_.Repeat(
        rest, min > prefix ? min - std::max<uint32_t>(static_cast<uint32_t>(prefix), 1) : 0,
        max == kUnbounded ? kUnbounded
                          : max - std::max<uint32_t>(static_cast<uint32_t>(prefix), 1));
    if (max == 0) after = kNoText;
    for (size_t i = prefix; i-- > 1;) {
      after = expressions_.Sequence({comma, Compile(item(i)), after});
      if (i >= min) after = expressions_.Choice({kEmptyText, after});
    }
    const Expression filled =
        max == 0 ? kNoText : expressions_.Sequence({Compile(item(0)), after, close});
    const Expression empty = min == 0 ? MarkExpression(']', false, false) : kNoText;
    return expressions_.Sequence(open, expressions_.Choice({filled, empty}));
  }

  // An array with `contains`: a rule for each number of items so far and of those that fit, both as
  // far as they matter. kUnwritten where these are too many.
  Expression WriteCounted(const Shape& shape, size_t prefix, uint32_t min, uint32_t max) {
    using Counts = std::vector<uint32_t>;  // items, then those that fit each `contains`
    // At least one, since no comma stands before the first item.
    Counts most{std::max({1u, static_cast<uint32_t>(prefix), max == kUnbounded ? min : max})};
    size_t states = most[0] + 1;
    for (const Shape::Contains& contains : shape.contains) {
      // One more than the upper bound is never reached.
      most.push_back(
          static_cast<uint32_t>(contains.max == kUnbounded ? contains.min : contains.max));
      if (contains.min > contains.max) return kNoText;
      states *= most.back() + 1;
      if (states > kMaxCountedStates) return kUnwritten;
    }
    if (shape.contains.size() > kMaxContains || states > kMaxCountedStates) return kUnwritten;
    std::map<Counts, uint32_t> rules;
    std::deque<Counts> pending;
    const auto rule = [&](const Counts& counts) {
      const auto [it, added] = rules.emplace(counts, 0);
      if (added) {
        it->second = expressions_.AddRule();
        pending.push_back(counts);
      }
      return expressions_.Rule(it->second);
    };
    const Expression start = rule(Counts(most.size(), 0));
    while (!pending.empty()) {
      const Counts counts = pending.front();
      pending.pop_front();
      std::vector<Expression> choices;
      bool enough = counts[0] >= min;
      for (size_t k = 0; k < shape.contains.size(); ++k) {
        enough = enough && counts[k + 1] >= shape.contains[k].min;
      }
      const bool first = counts[0] == 0;
      const Expression comma = first ? kEmptyText : MarkExpression(',', true, true);
      if (enough) choices.push_back(MarkExpression(']', !first, false));
      for (uint32_t fits = 0; counts[0] < max && fits < 1u << shape.contains.size(); ++fits) {
        Counts next = counts;
        next[0] = std::min(counts[0] + 1, most[0]);
        Demands demands;
        const uint32_t i = counts[0];
        for (const Shape::Items& items : shape.items) {
          Add(demands, i < items.prefix.size() ? items.prefix[i] : items.rest);
        }
        bool possible = true;
        for (size_t k = 0; k < shape.contains.size(); ++k) {
          const Shape::Contains& contains = shape.contains[k];
          const bool bounded = contains.max != kUnbounded;
          if ((fits >> k & 1) != 0) {
            // When enough of them are there, one that fits more is an item like any other.
            possible = possible && counts[k + 1] < (bounded ? contains.max : most[k + 1]);
            next[k + 1] = std::min(counts[k + 1] + 1, most[k + 1]);
            Add(demands, contains.demands);
          } else if (bounded) {
            // What is not counted must not fit.
            if (contains.demands.size() != 1) return kUnwritten;
            Demand denied = contains.demands.front();
            denied.negated = !denied.negated;
            Add(demands, denied);
          }
        }
        if (!possible) continue;
        choices.push_back(expressions_.Sequence({comma, Compile(demands), rule(next)}));
      }
      expressions_.SetRule(rules[counts], expressions_.Choice(std::move(choices)));
    }
    return expressions_.Sequence(MarkExpression('[', false, true), start);
  }

  // An array of different items out of few: like an object's members in any order, without values.
  // kNoText where the items are not of this kind.
  Expression WriteSet(const Demands& item, uint32_t min, uint32_t max) {
    ObjectRules rules;
    for (const Shape& shape : reader_.Shapes(item)) {
      std::vector<const OrderedJson*> values;
      if (shape.values) {
        values = *shape.values;
      } else if ((shape.types & ~static_cast<uint32_t>(kNull | kBoolean)) == 0) {
        static const OrderedJson words[] = {nullptr, true, false};
        for (const OrderedJson& word : words) values.push_back(&word);
      } else {
        return kNoText;
      }
      for (const OrderedJson* value : values) {
        if (!reader_.Fulfils(*value, shape)) continue;
        // Only kinds of texts that never begin another of the list.
        if (!value->is_string() && !value->is_boolean() && !value->is_null()) return kNoText;
        const std::string text = ScalarTexts(*value).front();
        if (std::ranges::any_of(rules.properties, [&](const auto& p) { return p.key == text; })) {
          continue;
        }
        rules.properties.push_back({text, kEmptyText, false, {}, false});
      }
    }
    rules.any_order = true;
    rules.min = min;
    rules.max = max;
    rules.colon = kEmpty;
    rules.comma = Mark(',', true, true);
    rules.close = Mark(']', true, false);
    rules.close_empty = Mark(']', false, false);
    return expressions_.Sequence(MarkExpression('[', false, true),
                                 expressions_.Members(std::move(rules)));
  }

  Expression WriteObject(const Shape& shape) {
    if (shape.min_properties > shape.max_properties) return kNoText;
    ObjectRules rules;
    rules.any_order = options_.order == PropertyOrder::kAny;
    rules.min = static_cast<uint32_t>(shape.min_properties);
    rules.max = static_cast<uint32_t>(std::min<uint64_t>(shape.max_properties, kUnbounded));
    rules.colon = Mark(':', true, true);
    rules.comma = Mark(',', true, true);
    rules.close = Mark('}', true, false);
    rules.close_empty = Mark('}', false, false);

    std::vector<std::string> names;
    std::map<std::string, bool, std::less<>> listed;
    const auto list = [&](const std::string& name) {
      if (listed.emplace(name, true).second) names.push_back(name);
    };
    for (const Shape::Properties& group : shape.properties) {
      for (const auto& [name, demands] : group.named) list(name);
    }
    for (const std::string& name : shape.required) list(name);
    std::map<std::string, bool, std::less<>> required;
    for (const std::string& name : shape.required) required.emplace(name, true);
    // A name that must be there is one of the properties, or another one: each is a shape.
    for (size_t i = 0; i < shape.present.size(); ++i) {
      if (++present_depth_ > kMaxPresent) reader_.Unsupported("not");
      const Shape::Present present = shape.present[i];
      std::vector<Expression> choices;
      Shape rest = shape;
      rest.present.erase(rest.present.begin() + static_cast<std::ptrdiff_t>(i));
      for (const std::string& name : names) {
        const std::string quoted = QuotedJson(name);
        const std::string_view content = std::string_view(quoted).substr(1, quoted.size() - 2);
        if (!regular_.Matches(present.names, content)) continue;
        Shape with = rest;
        if (!required.contains(name)) with.required.push_back(name);
        if (!present.value.empty()) {
          with.AddProperty(name, present.value);
        }
        choices.push_back(WriteObject(with));
        // It is there in any case: no other is needed.
        if (required.contains(name) && present.value.empty()) {
          --present_depth_;
          return choices.back();
        }
      }
      rest.other_present.push_back(present);
      choices.push_back(WriteObject(rest));
      --present_depth_;
      return expressions_.Choice(std::move(choices));
    }
    for (const std::string& name : names) {
      const bool allowed = std::ranges::all_of(shape.names, [&](const Demands& demands) {
        return reader_.Fulfils(OrderedJson(name), demands);
      });
      rules.properties.push_back(
          {QuotedJson(name),
           allowed ? Compile(shape.PropertyDemands(regular_, name)) : kNoText,
           required.contains(name),
           {},
           false});
    }
    AddOtherNames(shape, names, rules);
    for (const auto& property : rules.properties) {
      if (property.key.empty() && property.names.empty()) return kNoText;
    }
    // Other names may come twice, so that two of them may be one.
    if (!rules.others.empty() && rules.min > shape.required.size() + 1) {
      reader_.Unsupported("minProperties");
    }
    return expressions_.Sequence(MarkExpression('{', false, true),
                                 expressions_.Members(std::move(rules)));
  }

  static bool Forbids(const Demands& demands) {
    return std::ranges::any_of(demands, [](const Demand& demand) {
      return demand.schema->is_boolean() && demand.schema->get<bool>() == demand.negated;
    });
  }

  // Names that are no properties, divided by the patterns that they match.
  void AddOtherNames(const Shape& shape, const std::vector<std::string>& names,
                     ObjectRules& rules) {
    struct NameSet {
      Node names;
      Demands demands;
      bool matched;
    };
    const Node any = regular_.Repeat(reader_.character(), 0, kUnbounded);
    std::vector<NameSet> sets{{any, {}, false}};
    for (const Shape::Properties& group : shape.properties) {
      for (NameSet& set : sets) set.matched = false;
      for (const auto& [pattern, demands] : group.patterns) {
        std::vector<NameSet> divided;
        for (const NameSet& set : sets) {
          const Node in = regular_.And({set.names, pattern});
          const Node out = regular_.And({set.names, regular_.Not(pattern)});
          if (regular_.Alive(in)) {
            divided.push_back({in, set.demands, true});
            Add(divided.back().demands, demands);
          }
          if (regular_.Alive(out)) divided.push_back({out, set.demands, set.matched});
        }
        sets = std::move(divided);
        if (sets.size() > kMaxNameSets) {
          Fail(
              "the schema's patternProperties divide names into more than {} sets, which is the "
              "most allowed",
              kMaxNameSets);
        }
      }
      for (NameSet& set : sets) {
        if (!set.matched) Add(set.demands, group.additional);
      }
    }
    std::erase_if(sets, [](const NameSet& set) { return Forbids(set.demands); });
    std::vector<ObjectRules::Property> present;
    for (const Shape::Present& one : shape.other_present) {
      present.push_back({"", kNoText, true, {}, !one.value.empty()});
    }
    std::vector<Node> properties;
    for (const std::string& name : names) {
      if (sets.empty()) break;
      properties.push_back(SpelledText(regular_, name, Writing::kJsonString));
    }
    const Node not_properties = regular_.Not(regular_.Or(std::move(properties)));
    for (const NameSet& set : sets) {
      std::vector<Node> parts{set.names};
      if (!names.empty()) parts.push_back(not_properties);
      for (const Demands& demands : shape.names) parts.push_back(reader_.StringLanguage(demands));
      const Node node = regular_.And(std::move(parts));
      if (!regular_.Alive(node)) continue;
      rules.others.push_back({Quoted(node), Compile(set.demands)});
      for (size_t i = 0; i < shape.other_present.size(); ++i) {
        const Node among = regular_.And({node, shape.other_present[i].names});
        if (!regular_.Alive(among)) continue;
        Demands demands = set.demands;
        Add(demands, shape.other_present[i].value);
        present[i].names.push_back({Quoted(among), Compile(demands)});
      }
    }
    for (auto& property : present) {
      std::vector<Expression> values;
      for (const auto& [name, value] : property.names) values.push_back(value);
      property.value = expressions_.Choice(std::move(values));
      rules.properties.push_back(std::move(property));
    }
  }

  SchemaOptions options_;
  Regular& regular_;
  Expressions& expressions_;
  SchemaReader reader_;
  Node space_ = kEmpty;
  Node space_before_separator_ = kEmpty;  // before a colon or a comma
  Node space_after_colon_ = kEmpty;
  Expression texts_ = kNoText;
  int present_depth_ = 0;
  std::map<Demands, uint32_t> rules_;
  std::deque<std::pair<Demands, uint32_t>> pending_;
};

}  // namespace

Node SpaceByte(Regular& regular) {
  ByteSet space;
  for (const char c : {' ', '\t', '\n', '\r'}) space.set(static_cast<size_t>(c));
  return regular.Bytes(space);
}

CompiledSchema CompileSchema(const OrderedJson& schema, const SchemaOptions& options,
                             Rules& rules) {
  return SchemaWriter(schema, options, rules).result();
}

}  // namespace loopspec::grammar

// A grammar: rules over regular languages. Expressions are kept once each, like the nodes of
// regular.h; what is left of a repetition or of an object after some of it has been read is an
// expression too.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "grammar/intern.h"
#include "grammar/regular.h"

namespace loopspec::grammar {

using Expression = uint32_t;
inline constexpr Expression kNoText = 0;     // no text matches
inline constexpr Expression kEmptyText = 1;  // the empty text matches

// Where the members of an object stand.
enum class MemberPlace : uint32_t {
  kFirst,        // none yet: a key or the end
  kAfterMember,  // a comma or the end
  kAfterComma,   // a key
};

// The members of a JSON object, after `{`.
struct ObjectRules {
  // Names that are not among the properties: a pattern's, or any other. The languages are disjoint,
  // and contain no property. With quotes.
  struct Others {
    Node key = kNothing;
    Expression value = kNoText;
  };
  struct Property {
    std::string key;  // as JSON, with its quotes; empty: one of `names`
    Expression value = kNoText;
    bool required = false;
    // A member that must be there, whose name is one of these and whose value goes with it; the
    // properties of this kind come last. The value above is any of theirs.
    std::vector<Others> names;
    // No other name may follow, which could be the same one with another value.
    bool last = false;
  };
  std::vector<Property> properties;
  std::vector<Others> others;
  uint32_t min = 0;
  uint32_t max = kUnbounded;
  // Properties in any order, the others among them; else in the order of `properties`, the others
  // after them.
  bool any_order = false;

  // What follows a key, and what stands between two members; with white space where it may be.
  Node colon = kNothing;
  Node comma = kNothing;
  Node close = kNothing;
  Node close_empty = kNothing;  // right after the opening brace and its white space

  uint32_t named = 0;  // properties with a key: those before the first without
  // A trie of the keys; node 0 is the root.
  struct KeyNode {
    std::vector<std::pair<uint8_t, uint32_t>> edges;
    std::vector<uint32_t> below;  // ascending: the properties whose keys go through this node
    int32_t property = -1;        // whose key ends here
  };
  std::vector<KeyNode> keys;
  // For each property, and one past the last: how many from here on can be had, must be had.
  std::vector<uint32_t> usable_from;
  std::vector<uint32_t> required_from;
  // A required property from here on, the first; the number of properties when there is none.
  std::vector<uint32_t> next_required;
};

// Where an array of items that all differ stands.
enum class UniquePlace : uint32_t {
  kOpened,     // after `[`: an item or the end
  kItemRead,   // after an item, which must be told apart from those before; then a comma or the end
  kCommaRead,  // an item
};

// The items of a JSON array of which no two are equal, after `[`.
struct UniqueRules {
  std::vector<Expression> prefix;  // the first items
  Expression rest = kNoText;       // all others
  uint32_t min = 0;
  uint32_t max = kUnbounded;
  Node comma = kNothing;
  Node close = kNothing;
  Node close_empty = kNothing;  // right after the opening bracket and its white space

  // kNoText where no such item may be.
  Expression Item(uint32_t i) const {
    if (i >= max) return kNoText;
    return i < prefix.size() ? prefix[i] : rest;
  }
};

class Expressions {
 public:
  enum class Kind : uint32_t {
    kNone,
    kEpsilon,
    kTerminal,
    kSequence,
    kChoice,
    kRepeat,
    kRule,
    kMembers,
    kUnique
  };
  struct Entry {
    Kind kind;
    // kTerminal: a node. kSequence: both parts. kChoice: a list. kRepeat: what is repeated.
    // kRule: its number. kMembers: the object and the place in it. kUnique: the array and how many
    // items it has.
    uint32_t a, b;
    // kRepeat: how often. kMembers: members so far, and a MemberPlace. kUnique: a UniquePlace.
    uint32_t min, max;
  };

  Expressions();

  Expression Terminal(Node node);
  Expression Sequence(Expression first, Expression second);
  Expression Sequence(std::initializer_list<Expression> parts);
  Expression Choice(std::vector<Expression> choices);
  Expression Repeat(Expression expression, uint32_t min, uint32_t max);
  // A rule's text is given later, so that rules can contain each other.
  uint32_t AddRule();
  void SetRule(uint32_t rule, Expression expression) { rules_[rule] = expression; }
  Expression rule(uint32_t rule) const { return rules_[rule]; }
  Expression Rule(uint32_t rule);

  // The members of an object: `{` has been read.
  Expression Members(ObjectRules rules);
  // What is left when the object has come to `place`.
  Expression Members(uint32_t object, uint32_t place, uint32_t count, MemberPlace at);
  const ObjectRules& object(uint32_t number) const { return objects_[number]; }
  // An array of items that all differ: `[` has been read.
  Expression Unique(UniqueRules rules);
  // What is left of it after `count` items.
  Expression Unique(uint32_t array, uint32_t count, UniquePlace at);
  const UniqueRules& unique(uint32_t number) const { return uniques_[number]; }
  uint32_t unique_count() const { return static_cast<uint32_t>(uniques_.size()); }
  // A set of properties that are used up, for objects in any order.
  uint32_t UsedUp(uint32_t set, uint32_t property);
  bool IsUsedUp(uint32_t set, uint32_t property) const;
  // Whether a member with this property, or (property = kUnbounded) another one, may come next, so
  // that the object can still be completed.
  bool MayFollow(const Entry& members, uint32_t property) const;
  bool MayClose(const Entry& members) const;

  const Entry& operator[](Expression expression) const { return entries_[expression]; }
  std::span<const Expression> Choices(const Entry& entry) const { return lists_[entry.a]; }

  // Finds out which expressions match any text at all, and takes the others out of the way. Call it
  // once, before the first state. Throws Error when a rule begins with itself.
  void Finish(const Regular& regular);
  bool Matchable(Expression expression) const {
    return expression >= matchable_.size() || matchable_[expression];
  }

  size_t memory() const;

 private:
  Expression Make(const Entry& entry);
  void FindMatchable();
  void RefuseLeftRecursion(const Regular& regular) const;
  void FinishObject(ObjectRules& rules);
  void FinishUnique(UniqueRules& rules);

  ListTable<Entry> table_;
  std::vector<Entry> entries_;
  ListTable<Expression> lists_;
  ListTable<uint32_t> used_;  // properties used up, ascending; the first list is empty
  std::vector<Expression> rules_;
  std::vector<ObjectRules> objects_;
  std::vector<UniqueRules> uniques_;
  std::vector<bool> matchable_;
};

}  // namespace loopspec::grammar

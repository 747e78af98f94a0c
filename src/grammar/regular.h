// Regular languages over bytes, as expressions that are their own automata: the derivative of an
// expression by a byte is the language of what may follow that byte (Brzozowski). Expressions are
// made once each, so that equal ones have equal numbers and an expression is a state. Intersection
// and complement cost nothing extra, counted repetition is not unrolled, and only states that a
// text reaches are made.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/intern.h"

namespace loopspec::grammar {

using ByteSet = std::bitset<256>;
// A regular expression; as an automaton's state, what may still come.
using Node = uint32_t;
inline constexpr Node kNothing = 0;  // no text at all: a dead state
inline constexpr Node kEmpty = 1;    // the empty text alone
inline constexpr uint32_t kUnbounded = ~0u;

// Of patterns and grammars that people write: groups within groups, and the counts of repetitions.
inline constexpr int kMaxNesting = 200;
inline constexpr uint32_t kMaxCount = 1'000'000;

// An automaton given by its states: sets of many texts, remainders of a division, a search for a
// mark. State 0 is the start.
struct Table {
  struct Edge {
    uint8_t low, high;  // bytes, both included; the edges of a state are disjoint and ascending
    uint32_t next;
  };
  struct State {
    std::vector<Edge> edges;
    bool accepts = false;
  };
  std::vector<State> states;
};

// The table without states from which no accepting one can be reached.
Table Pruned(Table table);

class Regular {
 public:
  Regular();

  Node Bytes(const ByteSet& set);
  Node Byte(uint8_t byte) { return Range(byte, byte); }
  Node Range(uint8_t low, uint8_t high);
  Node Text(std::string_view text);
  Node Concat(Node first, Node second);
  Node Concat(std::initializer_list<Node> parts);
  Node Or(std::vector<Node> choices);
  Node And(std::vector<Node> parts);
  Node Not(Node node);
  // max: kUnbounded or the number.
  Node Repeat(Node node, uint32_t min, uint32_t max);
  Node Optional(Node node) { return Or({node, kEmpty}); }
  // From each state of the table some accepting state must be within reach.
  Node FromTable(Table table);
  // One of these texts.
  Node OneOf(std::span<const std::string> texts);

  bool Nullable(Node node) const { return nodes_[node].nullable; }
  // Without an intersection or a complement in it.
  bool IsPlain(Node node) const { return nodes_[node].plain; }
  // What may follow after `byte`; kNothing when nothing can, so that no walk ends in a dead end.
  Node Next(Node node, uint8_t byte) {
    const uint32_t row = rows_of_[node];
    if (row != kNoRow && classes_ready_) {
      const Node next = rows_[row + class_of_[byte]];
      if (next != kUnknown) return next;
    }
    return MakeNext(node, byte);
  }
  // Whether this step was asked for before, so that it costs nothing.
  bool KnowsNext(Node node, uint8_t byte) const {
    const uint32_t row = rows_of_[node];
    return row != kNoRow && classes_ready_ && rows_[row + class_of_[byte]] != kUnknown;
  }
  // Whether the language has any text.
  bool Alive(Node node) { return Alive(node, kMaxSearch); }
  bool Matches(Node node, std::string_view text);
  // Whether every text of `inner` is one of `outer`.
  bool Contains(Node outer, Node inner) { return !Alive(And({inner, Not(outer)})); }
  // The same, or false where finding out would visit more than `most` states.
  bool IsKnownToContain(Node outer, Node inner, size_t most);
  // Whether any byte may follow, in a language that has some text.
  bool HasNext(Node node) {
    if (node <= kEmpty) return false;
    return nodes_[node].plain || !nodes_[node].nullable || FindNext(node);
  }

  // A node of the form item{min,max} tail, where tail may be the empty text.
  struct Counted {
    Node item;
    uint32_t min, max;
    Node tail;
  };
  bool AsCounted(Node node, Counted& counted) const;
  // Of a complement: what it leaves out. Else kNothing.
  Node LeftOut(Node node) const {
    return nodes_[node].kind == Kind::kNot ? nodes_[node].a : kNothing;
  }
  // Whether both are states of one table.
  bool SameTable(Node a, Node b) const {
    return nodes_[a].kind == Kind::kTable && nodes_[b].kind == Kind::kTable &&
           nodes_[a].a == nodes_[b].a;
  }

  // Lengths count characters: `any` is one character, whichever it is. Until this is called nothing
  // has lengths.
  void CountCharacters(Node any) { any_character_ = any; }
  // Says that each text of the node, and of each choice that it consists of, is one character.
  void MarkCharacter(Node node);
  // How many characters the texts of a language have.
  struct Lengths {
    bool known = false;
    uint32_t min = 0, max = 0;  // the shortest and the longest, kUnbounded: there is no longest
    // Whether every length between the two is there.
    bool all = false;
    // After any beginning of a text, how many characters are needed at most to complete it.
    uint32_t completion = 0;
  };
  Lengths LengthsOf(Node node);
  // A node of the form (language & any{min,max}) tail, where `language` has lengths.
  struct Limited {
    Node language;
    uint32_t min, max;
    Node tail;
  };
  bool AsLimited(Node node, Limited& limited) const;
  Node any_character() const { return any_character_; }
  // The parts of an intersection; the node itself where it is no intersection.
  std::vector<Node> Parts(Node node) const;
  // A concatenation as its first part and what follows.
  std::pair<Node, Node> Split(Node node) const {
    const Entry& entry = nodes_[node];
    return entry.kind == Kind::kConcat ? std::pair(entry.a, entry.b) : std::pair(node, kEmpty);
  }

  // Nodes that a caller makes often, by a key of its own; kNothing: not kept.
  Node FindKept(uint64_t key) const {
    const auto found = kept_.find(key);
    return found == kept_.end() ? kNothing : found->second;
  }
  void Keep(uint64_t key, Node node) { kept_.emplace(key, node); }
  // The same by a list.
  Node FindKept(const std::vector<uint32_t>& key) const {
    const auto found = kept_lists_.find(key);
    return found == kept_lists_.end() ? kNothing : found->second;
  }
  void Keep(std::vector<uint32_t> key, Node node) {
    Spend(key.size() * sizeof(uint32_t) + 64);
    kept_lists_.emplace(std::move(key), node);
  }

  // Bytes of memory that the expressions take, about.
  size_t memory() const { return memory_; }
  void set_memory_limit(size_t bytes) { memory_limit_ = bytes; }

 private:
  enum class Kind : uint8_t { kNone, kEpsilon, kBytes, kConcat, kOr, kAnd, kNot, kRepeat, kTable };
  struct Entry {
    Kind kind;
    bool nullable;
    // Without And and Not below it, so that it is alive.
    bool plain;
    uint8_t alive;  // 0: not known yet, 1: dead, 2: alive
    // kBytes: number of the set. kConcat: both. kNot, kRepeat: the child. kTable: table and state.
    // kOr, kAnd: a span of children_.
    uint32_t a, b;
    uint32_t min, max;
  };
  static constexpr Node kUnknown = ~0u;
  // States that a search for a text of an intersection may visit.
  static constexpr size_t kMaxSearch = 200'000;
  // Derivatives that it may take: a state with many word boundaries takes thousands. Less than
  // half a second.
  static constexpr uint64_t kMaxDerivatives = 2'000'000;
  static constexpr uint32_t kNoRow = ~0u;

  bool Alive(Node node, size_t most);
  // What is known of a node without a search: 0 nothing, 1 that it is dead, 2 that it is alive.
  uint8_t KnownAlive(const Entry& entry, std::span<const Node> children);
  // The same for an intersection with any{min,max}.
  uint8_t LengthsMeet(std::span<const Node> children);
  // Takes any{..} out of an intersection where the rest has lengths and keeps to them.
  void MergeLengths(std::vector<Node>& parts);
  Lengths MakeLengths(Node node);
  // Where a choice is any{0,} tail: takes out the others that are characters and the same tail.
  void DropContained(std::vector<Node>& choices);
  Node Make(const Entry& entry, std::span<const Node> children);
  Node Combine(Kind kind, std::vector<Node> parts);
  Node MakeNext(Node node, uint8_t byte);
  bool FindNext(Node node);
  Node Derivative(Node node, uint8_t byte);
  // Of a part of an intersection: many intersections share it, so that its transitions are kept.
  Node PartNext(Node node, uint8_t byte) {
    return nodes_[node].plain ? Next(node, byte) : Derivative(node, byte);
  }
  Node TableState(uint32_t table, uint32_t state);
  std::span<const Node> Children(const Entry& entry) const {
    return {children_.data() + entry.a, entry.b};
  }
  void Spend(size_t bytes);
  // Splits the classes of bytes so that each is within the set or without.
  void TellApart(const ByteSet& set);
  void MakeClasses();

  std::vector<Entry> nodes_;
  std::vector<Node> children_;
  std::vector<ByteSet> sets_;
  std::vector<Table> tables_;
  std::unordered_map<ByteSet, uint32_t> set_numbers_;
  NumberMap known_;              // a hash to the last node that has it
  std::vector<Node> same_hash_;  // by node: the one before with the same hash; kNothing: none
  std::unordered_map<uint64_t, Node> kept_;
  std::map<std::vector<uint32_t>, Node> kept_lists_;

  // Bytes that no set and no table tells apart are one class; rows of the transition table have one
  // entry for each class.
  std::array<uint8_t, 256> class_of_{};
  std::array<uint16_t, 256> class_sizes_{256};
  uint32_t class_count_ = 1;
  std::vector<bool> ranges_told_apart_;  // 256 * low + high
  std::vector<uint8_t> class_bytes_;     // one byte of each class
  bool classes_ready_ = false;
  std::vector<uint32_t> rows_of_;
  std::vector<Node> rows_;

  Node any_character_ = kNothing;
  std::vector<bool> is_character_;  // by node, as far as any was marked
  NumberMap has_next_;              // what FindNext found
  NumberMap lengths_numbers_;       // node to its place in lengths_
  std::vector<Lengths> lengths_;

  uint64_t derivatives_ = 0;  // that were worked out
  size_t memory_ = 0;
  size_t memory_limit_ = size_t{256} << 20;
};

}  // namespace loopspec::grammar

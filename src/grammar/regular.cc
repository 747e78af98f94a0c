#include "grammar/regular.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace loopspec::grammar {
namespace {

// States that a search for a text visits in the order of their texts' lengths. Most intersections
// have a short text; where there is none, a search that goes deep finds a long one sooner.
constexpr size_t kWideSearch = 400;
// Bytes that a search tries straight on before that.
constexpr uint32_t kStraightSearch = 3000;

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9E3779B97F4A7C15ull + (hash << 6) + (hash >> 2);
  return hash * 0xFF51AFD7ED558CCDull;
}

}  // namespace

Table Pruned(Table table) {
  std::vector<std::vector<uint32_t>> into(table.states.size());
  std::vector<uint32_t> work;
  std::vector<bool> reaches(table.states.size(), false);
  for (uint32_t state = 0; state < table.states.size(); ++state) {
    for (const auto& edge : table.states[state].edges) into[edge.next].push_back(state);
    if (table.states[state].accepts) work.push_back(state);
  }
  while (!work.empty()) {
    const uint32_t state = work.back();
    work.pop_back();
    if (reaches[state]) continue;
    reaches[state] = true;
    work.insert(work.end(), into[state].begin(), into[state].end());
  }
  for (auto& state : table.states) {
    std::erase_if(state.edges, [&](const Table::Edge& edge) { return !reaches[edge.next]; });
  }
  return table;
}

Regular::Regular() {
  nodes_.push_back({Kind::kNone, false, true, 1, 0, 0, 0, 0});
  nodes_.push_back({Kind::kEpsilon, true, true, 2, 0, 0, 0, 0});
  rows_of_ = {kNoRow, kNoRow};
  same_hash_ = {kNothing, kNothing};
}

void Regular::Spend(size_t bytes) {
  memory_ += bytes;
  if (memory_ > memory_limit_) {
    Fail("the grammar's automaton takes more than {} MiB, which is the most allowed",
         memory_limit_ >> 20);
  }
}

Node Regular::Make(const Entry& entry, std::span<const Node> children) {
  uint64_t hash = Mix(static_cast<uint64_t>(entry.kind), entry.min);
  hash = Mix(hash, entry.max);
  const bool list = entry.kind == Kind::kOr || entry.kind == Kind::kAnd;
  if (list) {
    for (const Node child : children) hash = Mix(hash, child);
  } else {
    hash = Mix(Mix(hash, entry.a), entry.b);
  }
  const Node last = known_.Find(hash);
  for (Node i = last == NumberMap::kMissing ? kNothing : last; i != kNothing; i = same_hash_[i]) {
    const Entry& other = nodes_[i];
    if (other.kind != entry.kind || other.min != entry.min || other.max != entry.max) continue;
    if (list ? std::ranges::equal(Children(other), children)
             : other.a == entry.a && other.b == entry.b) {
      return i;
    }
  }
  Spend(sizeof(Entry) + 64 + children.size_bytes());
  Entry made = entry;
  if (list) {
    made.a = static_cast<uint32_t>(children_.size());
    made.b = static_cast<uint32_t>(children.size());
    children_.insert(children_.end(), children.begin(), children.end());
  }
  if (made.alive == 0) made.alive = KnownAlive(entry, children);
  const Node node = static_cast<Node>(nodes_.size());
  nodes_.push_back(made);
  rows_of_.push_back(kNoRow);
  same_hash_.push_back(last == NumberMap::kMissing ? kNothing : last);
  known_.Set(hash, node);
  return node;
}

Node Regular::Bytes(const ByteSet& set) {
  if (set.none()) return kNothing;
  const auto [it, added] = set_numbers_.emplace(set, static_cast<uint32_t>(sets_.size()));
  if (added) {
    sets_.push_back(set);
    TellApart(set);
    Spend(512);
  }
  return Make({Kind::kBytes, false, true, 2, it->second, 0, 0, 0}, {});
}

Node Regular::Range(uint8_t low, uint8_t high) {
  ByteSet set;
  for (int byte = low; byte <= high; ++byte) set.set(static_cast<size_t>(byte));
  return Bytes(set);
}

Node Regular::Text(std::string_view text) {
  Node node = kEmpty;
  for (size_t i = text.size(); i-- > 0;) node = Concat(Byte(static_cast<uint8_t>(text[i])), node);
  return node;
}

Node Regular::Concat(Node first, Node second) {
  if (first == kNothing || second == kNothing) return kNothing;
  if (first == kEmpty) return second;
  if (second == kEmpty) return first;
  // The left part of a concatenation is never one itself: a chain hangs to the right.
  std::vector<Node> heads;
  while (nodes_[first].kind == Kind::kConcat) {
    heads.push_back(nodes_[first].a);
    first = nodes_[first].b;
  }
  heads.push_back(first);
  Node node = second;
  for (size_t i = heads.size(); i-- > 0;) {
    const Entry& a = nodes_[heads[i]];
    const Entry& b = nodes_[node];
    node = Make({Kind::kConcat, a.nullable && b.nullable, a.plain && b.plain,
                 static_cast<uint8_t>(a.plain && b.plain ? 2 : 0), heads[i], node, 0, 0},
                {});
  }
  return node;
}

Node Regular::Concat(std::initializer_list<Node> parts) {
  Node node = kEmpty;
  for (auto it = std::rbegin(parts); it != std::rend(parts); ++it) node = Concat(*it, node);
  return node;
}

Node Regular::Combine(Kind kind, std::vector<Node> parts) {
  std::vector<Node> flat;
  for (const Node part : parts) {
    if (nodes_[part].kind == kind) {
      const auto children = Children(nodes_[part]);
      flat.insert(flat.end(), children.begin(), children.end());
    } else {
      flat.push_back(part);
    }
  }
  const bool any = kind == Kind::kOr;
  if (!any) MergeLengths(flat);
  std::ranges::sort(flat);
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  // Everything: the complement of nothing.
  const auto everything = [&](Node node) {
    return nodes_[node].kind == Kind::kNot && nodes_[node].a == kNothing;
  };
  if (any) {
    std::erase(flat, kNothing);
    DropContained(flat);
    for (const Node part : flat) {
      if (everything(part)) return part;
    }
  } else {
    if (!flat.empty() && flat.front() == kNothing) return kNothing;
    const size_t before = flat.size();
    std::erase_if(flat, everything);
    if (flat.empty()) return before > 0 ? parts.front() : Not(kNothing);
  }
  if (flat.empty()) return kNothing;
  if (flat.size() == 1) return flat.front();
  bool nullable = !any;
  bool plain = any;
  for (const Node part : flat) {
    nullable = any ? nullable || nodes_[part].nullable : nullable && nodes_[part].nullable;
    plain = plain && nodes_[part].plain;
  }
  // The empty text is already in a choice that has another nullable part.
  if (any && flat.front() == kEmpty) {
    for (size_t i = 1; i < flat.size(); ++i) {
      if (nodes_[flat[i]].nullable) {
        flat.erase(flat.begin());
        return flat.size() == 1 ? flat.front() : Combine(kind, flat);
      }
    }
  }
  if (!any && flat.front() == kEmpty) return nullable ? kEmpty : kNothing;
  if (!any && LengthsMeet(flat) == 1) return kNothing;
  return Make({kind, nullable, plain, static_cast<uint8_t>(plain ? 2 : 0), 0, 0, 0, 0}, flat);
}

Node Regular::Or(std::vector<Node> choices) {
  // One set instead of several.
  ByteSet united;
  int sets = 0;
  for (const Node choice : choices) {
    if (nodes_[choice].kind == Kind::kBytes) {
      united |= sets_[nodes_[choice].a];
      ++sets;
    }
  }
  if (sets > 1) {
    std::erase_if(choices, [&](Node choice) { return nodes_[choice].kind == Kind::kBytes; });
    choices.push_back(Bytes(united));
  }
  return Combine(Kind::kOr, std::move(choices));
}

Node Regular::And(std::vector<Node> parts) {
  return Combine(Kind::kAnd, std::move(parts));
}

Node Regular::Not(Node node) {
  if (nodes_[node].kind == Kind::kNot) return nodes_[node].a;
  return Make({Kind::kNot, !nodes_[node].nullable, false, 0, node, 0, 0, 0}, {});
}

Node Regular::Repeat(Node node, uint32_t min, uint32_t max) {
  if (min > max) return kNothing;
  if (max == 0 || node == kEmpty) return kEmpty;
  if (node == kNothing) return min == 0 ? kEmpty : kNothing;
  if (nodes_[node].nullable) min = 0;
  if (min == 1 && max == 1) return node;
  // (x*)* is x*.
  if (nodes_[node].kind == Kind::kRepeat && nodes_[node].min <= 1 &&
      nodes_[node].max == kUnbounded) {
    return Repeat(nodes_[node].a, std::min(min, nodes_[node].min), kUnbounded);
  }
  const Entry& child = nodes_[node];
  return Make({Kind::kRepeat, min == 0, child.plain,
               static_cast<uint8_t>(child.plain || min == 0 ? 2 : 0), node, 0, min, max},
              {});
}

Node Regular::TableState(uint32_t table, uint32_t state) {
  const Table::State& found = tables_[table].states[state];
  if (found.edges.empty()) return found.accepts ? kEmpty : kNothing;
  return Make({Kind::kTable, found.accepts, true, 2, table, state, 0, 0}, {});
}

Node Regular::FromTable(Table table) {
  if (table.states.empty()) return kNothing;
  size_t edges = 0;
  ranges_told_apart_.resize(size_t{256} * 256);
  for (const auto& state : table.states) {
    edges += state.edges.size();
    for (const auto& edge : state.edges) {
      const size_t range = size_t{edge.low} * 256 + edge.high;
      if (ranges_told_apart_[range]) continue;
      ranges_told_apart_[range] = true;
      ByteSet set;
      for (int byte = edge.low; byte <= edge.high; ++byte) set.set(static_cast<size_t>(byte));
      TellApart(set);
    }
  }
  Spend(table.states.size() * sizeof(Table::State) + edges * sizeof(Table::Edge));
  tables_.push_back(std::move(table));
  return TableState(static_cast<uint32_t>(tables_.size() - 1), 0);
}

Node Regular::OneOf(std::span<const std::string> texts) {
  if (texts.size() == 1) return Text(texts[0]);
  std::vector<std::string> sorted(texts.begin(), texts.end());
  std::ranges::sort(sorted);
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  if (sorted.empty()) return kNothing;
  Table trie;
  trie.states.emplace_back();
  for (const std::string& text : sorted) {
    uint32_t at = 0;
    for (const char c : text) {
      const auto byte = static_cast<uint8_t>(c);
      // Texts come in order of their bytes, so that an edge can only be the newest.
      auto& edges = trie.states[at].edges;
      if (!edges.empty() && edges.back().low == byte) {
        at = edges.back().next;
        continue;
      }
      const auto made = static_cast<uint32_t>(trie.states.size());
      edges.push_back({byte, byte, made});
      trie.states.emplace_back();
      at = made;
    }
    trie.states[at].accepts = true;
  }
  return FromTable(std::move(trie));
}

void Regular::TellApart(const ByteSet& set) {
  std::array<uint16_t, 256> inside{};
  for (size_t byte = 0; byte < 256; ++byte) inside[class_of_[byte]] += set[byte] ? 1 : 0;
  std::array<uint16_t, 256> part{};  // by class: what those in the set become; 0: nothing else
  const uint32_t before = class_count_;
  for (uint32_t id = 0; id < before; ++id) {
    if (inside[id] == 0 || inside[id] == class_sizes_[id]) continue;
    part[id] = static_cast<uint16_t>(class_count_);
    class_sizes_[class_count_++] = inside[id];
    class_sizes_[id] -= inside[id];
  }
  if (class_count_ == before) return;
  classes_ready_ = false;
  for (size_t byte = 0; byte < 256; ++byte) {
    const uint8_t id = class_of_[byte];
    if (set[byte] && part[id] != 0) class_of_[byte] = static_cast<uint8_t>(part[id]);
  }
}

void Regular::MakeClasses() {
  class_bytes_.assign(class_count_, 0);
  for (size_t byte = 0; byte < 256; ++byte) {
    class_bytes_[class_of_[byte]] = static_cast<uint8_t>(byte);
  }
  std::ranges::fill(rows_of_, kNoRow);
  rows_.clear();
  classes_ready_ = true;
}

Node Regular::MakeNext(Node node, uint8_t byte) {
  if (node <= kEmpty) return kNothing;
  if (!classes_ready_) MakeClasses();
  if (rows_of_[node] == kNoRow) {
    Spend(class_bytes_.size() * sizeof(Node));
    rows_of_[node] = static_cast<uint32_t>(rows_.size());
    rows_.resize(rows_.size() + class_bytes_.size(), kUnknown);
  }
  Node next = rows_[rows_of_[node] + class_of_[byte]];
  if (next != kUnknown) return next;
  next = Derivative(node, byte);
  // The search for life asks for transitions too, so that it comes before the entry is written.
  if (next != kNothing && !nodes_[next].plain && !Alive(next)) next = kNothing;
  rows_[rows_of_[node] + class_of_[byte]] = next;
  return next;
}

// An intersection or a complement may have the empty text alone.
bool Regular::FindNext(Node node) {
  const uint32_t known = has_next_.Find(node);
  if (known != NumberMap::kMissing) return known == 1;
  if (!classes_ready_) MakeClasses();
  const bool found =
      std::ranges::any_of(class_bytes_, [&](uint8_t byte) { return Next(node, byte) != kNothing; });
  has_next_.Set(node, found ? 1 : 0);
  return found;
}

Node Regular::Derivative(Node node, uint8_t byte) {
  ++derivatives_;
  const Entry entry = nodes_[node];
  switch (entry.kind) {
    case Kind::kNone:
    case Kind::kEpsilon:
      return kNothing;
    case Kind::kBytes:
      return sets_[entry.a][byte] ? kEmpty : kNothing;
    case Kind::kConcat: {
      // A chain whose first parts may be empty: a loop, since it may be long.
      std::vector<Node> choices;
      Node rest = node;
      while (true) {
        if (nodes_[rest].kind != Kind::kConcat) {
          choices.push_back(Derivative(rest, byte));
          break;
        }
        const Node head = nodes_[rest].a;
        rest = nodes_[rest].b;
        choices.push_back(Concat(Derivative(head, byte), rest));
        if (!nodes_[head].nullable) break;
      }
      return choices.size() == 1 ? choices.front() : Or(std::move(choices));
    }
    case Kind::kOr:
    case Kind::kAnd: {
      // Most bytes are none of some part's.
      for (uint32_t i = 0; entry.kind == Kind::kAnd && i < entry.b; ++i) {
        const Node child = children_[entry.a + i];
        if (nodes_[child].plain && Next(child, byte) == kNothing) return kNothing;
      }
      std::vector<Node> parts;
      for (uint32_t i = 0; i < entry.b; ++i) {
        const Node child = children_[entry.a + i];
        const Node part =
            entry.kind == Kind::kAnd ? PartNext(child, byte) : Derivative(child, byte);
        if (entry.kind == Kind::kAnd && part == kNothing) return kNothing;
        if (part != kNothing || entry.kind == Kind::kAnd) parts.push_back(part);
      }
      return entry.kind == Kind::kOr ? Or(std::move(parts)) : And(std::move(parts));
    }
    case Kind::kNot:
      return Not(PartNext(entry.a, byte));
    case Kind::kRepeat:
      // The same child stands under every count: its transitions are kept.
      return Concat(nodes_[entry.a].plain ? Next(entry.a, byte) : Derivative(entry.a, byte),
                    Repeat(entry.a, entry.min == 0 ? 0 : entry.min - 1,
                           entry.max == kUnbounded ? kUnbounded : entry.max - 1));
    case Kind::kTable:
      for (const auto& edge : tables_[entry.a].states[entry.b].edges) {
        if (byte >= edge.low && byte <= edge.high) return TableState(entry.a, edge.next);
      }
      return kNothing;
  }
  return kNothing;
}

bool Regular::IsKnownToContain(Node outer, Node inner, size_t most) {
  try {
    return !Alive(And({inner, Not(outer)}), most);
  } catch (const Error&) {
    return false;
  }
}

bool Regular::Alive(Node node, size_t most) {
  if (nodes_[node].alive != 0) return nodes_[node].alive == 2;
  if (!classes_ready_) MakeClasses();
  struct Visit {
    Node node;
    uint32_t from;  // the visit that led here
    uint32_t next_class;
  };
  std::vector<Visit> visits{{node, 0, 0}};
  std::unordered_map<Node, bool> visited{{node, true}};
  bool found = nodes_[node].nullable;
  const uint64_t begin = derivatives_;
  uint32_t last = 0;  // the visit from which the search goes on
  // Follows one more byte from a visit.
  const auto follow = [&](uint32_t from) {
    const uint8_t byte = class_bytes_[visits[from].next_class++];
    const Node next = Derivative(visits[from].node, byte);
    if (derivatives_ - begin > kMaxDerivatives) {
      Fail("an intersection of patterns takes more than {} derivatives, which is the most allowed",
           kMaxDerivatives);
    }
    LOOPSPEC_CHECK(classes_ready_);
    if (next == kNothing || nodes_[next].alive == 1 || !visited.emplace(next, true).second) {
      return false;
    }
    last = static_cast<uint32_t>(visits.size());
    visits.push_back({next, from, 0});
    found = nodes_[next].nullable || nodes_[next].alive == 2;
    if (visits.size() > most) {
      Fail("an intersection of patterns has more than {} states, which is the most allowed", most);
    }
    return true;
  };
  // Straight on: within a character of a counted text its end is near, and the lengths decide
  // there; two patterns that agree on a long beginning are not worth trying all ways of writing it.
  for (uint32_t at = 0, steps = 0; !found && any_character_ != kNothing && steps < kStraightSearch;
       ++steps) {
    if (visits[at].next_class == class_bytes_.size()) break;
    if (follow(at)) at = last;
  }
  // First by length.
  for (uint32_t i = 0; !found && i < visits.size() && visits.size() < kWideSearch; ++i) {
    while (!found && visits[i].next_class < class_bytes_.size()) follow(i);
  }
  // Then deeper, from the newest.
  std::vector<uint32_t> path;
  for (uint32_t i = 0; !found && i < visits.size(); ++i) {
    if (visits[i].next_class < class_bytes_.size()) path.push_back(i);
  }
  while (!found && !path.empty()) {
    const uint32_t top = path.back();
    if (visits[top].next_class == class_bytes_.size()) {
      path.pop_back();
    } else if (follow(top)) {
      path.push_back(last);
    }
  }
  if (!found) {
    for (const Visit& visit : visits) nodes_[visit.node].alive = 1;
    return false;
  }
  for (uint32_t i = last; i != 0; i = visits[i].from) nodes_[visits[i].node].alive = 2;
  nodes_[node].alive = 2;
  return true;
}

bool Regular::Matches(Node node, std::string_view text) {
  for (const char c : text) node = Next(node, static_cast<uint8_t>(c));
  return Nullable(node);
}

bool Regular::AsCounted(Node node, Counted& counted) const {
  Node head = node;
  counted.tail = kEmpty;
  if (nodes_[node].kind == Kind::kConcat) {
    head = nodes_[node].a;
    counted.tail = nodes_[node].b;
  }
  if (nodes_[head].kind != Kind::kRepeat) return false;
  counted.item = nodes_[head].a;
  counted.min = nodes_[head].min;
  counted.max = nodes_[head].max;
  return true;
}

}  // namespace loopspec::grammar

// How many characters the texts of a language have, found from the expression alone. A pattern
// beside a bound on the length is an intersection whose states differ by how much is left; lengths
// decide without a search whether a text is left in one, and where the bound is too far away to
// matter.
#include <algorithm>

#include "grammar/regular.h"

namespace loopspec::grammar {
namespace {

uint32_t Sum(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(std::min<uint64_t>(uint64_t{a} + b, kUnbounded));
}

uint32_t Product(uint32_t a, uint32_t b) {
  if (a == 0 || b == 0) return 0;
  return static_cast<uint32_t>(std::min<uint64_t>(uint64_t{a} * b, kUnbounded));
}

// One byte that is a character of a JSON string by itself.
bool IsPlainByte(const ByteSet& set) {
  for (size_t byte = 0x80; byte < 256; ++byte) {
    if (set[byte]) return false;
  }
  for (size_t byte = 0; byte < 0x20; ++byte) {
    if (set[byte]) return false;
  }
  return !set['\\'] && !set['"'];
}

}  // namespace

void Regular::MarkCharacter(Node node) {
  const auto mark = [&](Node one) {
    if (is_character_.size() <= one) is_character_.resize(nodes_.size());
    is_character_[one] = true;
  };
  mark(node);
  if (nodes_[node].kind != Kind::kOr) return;
  for (const Node choice : Children(nodes_[node])) mark(choice);
}

Regular::Lengths Regular::LengthsOf(Node node) {
  if (any_character_ == kNothing || !nodes_[node].plain) return {};
  // A chain may be long: its ends come first.
  std::vector<Node> chain{node};
  while (lengths_numbers_.Find(chain.back()) == NumberMap::kMissing &&
         nodes_[chain.back()].kind == Kind::kConcat) {
    chain.push_back(nodes_[chain.back()].b);
  }
  for (size_t i = chain.size(); i-- > 0;) {
    if (lengths_numbers_.Find(chain[i]) != NumberMap::kMissing) continue;
    const Lengths made = MakeLengths(chain[i]);
    lengths_numbers_.Set(chain[i], static_cast<uint32_t>(lengths_.size()));
    lengths_.push_back(made);
    Spend(sizeof(Lengths) + 32);
  }
  return lengths_[lengths_numbers_.Find(node)];
}

Regular::Lengths Regular::MakeLengths(Node node) {
  constexpr Lengths kOneCharacter{true, 1, 1, true, 1};
  if (node == kEmpty) return {true, 0, 0, true, 0};
  if (node < is_character_.size() && is_character_[node]) return kOneCharacter;
  const Entry entry = nodes_[node];
  switch (entry.kind) {
    case Kind::kBytes:
      return IsPlainByte(sets_[entry.a]) ? kOneCharacter : Lengths();
    case Kind::kConcat: {
      const Lengths a = LengthsOf(entry.a), b = LengthsOf(entry.b);
      if (!a.known || !b.known) return {};
      return {true, Sum(a.min, b.min), Sum(a.max, b.max), a.all && b.all,
              std::max(Sum(a.completion, b.min), b.completion)};
    }
    case Kind::kRepeat: {
      const Lengths item = LengthsOf(entry.a);
      if (!item.known || item.max == 0) return {};
      // k items have min * k to max * k characters: no gap between k and k + 1 items.
      const uint64_t spread = uint64_t{item.max} - item.min;
      const bool all = item.all && (entry.min == entry.max || item.min <= entry.min * spread + 1);
      return {true, Product(entry.min, item.min), Product(entry.max, item.max), all,
              Sum(item.completion, Product(entry.min > 0 ? entry.min - 1 : 0, item.min))};
    }
    case Kind::kOr: {
      std::vector<Lengths> choices;
      for (uint32_t i = 0; i < entry.b; ++i) {
        choices.push_back(LengthsOf(children_[entry.a + i]));
        if (!choices.back().known) return {};
      }
      std::ranges::sort(choices, {}, &Lengths::min);
      Lengths made = choices.front();
      for (const Lengths& choice : choices) {
        made.all = made.all && choice.all && choice.min <= Sum(made.max, 1);
        made.max = std::max(made.max, choice.max);
        made.completion = std::max(made.completion, choice.completion);
      }
      return made;
    }
    default:
      return {};
  }
}

std::vector<Node> Regular::Parts(Node node) const {
  if (nodes_[node].kind != Kind::kAnd) return {node};
  const auto children = Children(nodes_[node]);
  return {children.begin(), children.end()};
}

uint8_t Regular::LengthsMeet(std::span<const Node> children) {
  if (any_character_ == kNothing || children.size() != 2) return 0;
  for (const size_t counted : {0, 1}) {
    const Entry& count = nodes_[children[counted]];
    if (count.kind != Kind::kRepeat || count.a != any_character_) continue;
    const uint32_t min = count.min, max = count.max;
    const Lengths lengths = LengthsOf(children[1 - counted]);
    if (!lengths.known) return 0;
    if (lengths.max < min || lengths.min > max) return 1;
    if (lengths.all || lengths.min >= min || lengths.max <= max) return 2;
    return 0;
  }
  return 0;
}

void Regular::MergeLengths(std::vector<Node>& parts) {
  if (any_character_ == kNothing) return;
  uint32_t min = 0, max = kUnbounded;
  bool counted = false;
  bool bounded = false;  // whether another part has characters alone
  for (const Node part : parts) {
    const Entry& entry = nodes_[part];
    if (entry.kind == Kind::kRepeat && entry.a == any_character_) {
      counted = true;
      min = std::max(min, entry.min);
      max = std::min(max, entry.max);
    } else {
      bounded = bounded || LengthsOf(part).known;
    }
  }
  if (!counted) return;
  std::erase_if(parts, [&](Node part) {
    return nodes_[part].kind == Kind::kRepeat && nodes_[part].a == any_character_;
  });
  if (min > max) {
    parts = {kNothing};
  } else if (!bounded || min > 0 || max != kUnbounded) {
    parts.push_back(Repeat(any_character_, min, max));
  }
}

void Regular::DropContained(std::vector<Node>& choices) {
  if (any_character_ == kNothing || choices.size() < 2) return;
  const auto widest = std::ranges::find_if(choices, [&](Node choice) {
    const Entry& first = nodes_[Split(choice).first];
    return first.kind == Kind::kRepeat && first.a == any_character_ && first.min == 0 &&
           first.max == kUnbounded;
  });
  if (widest == choices.end()) return;
  const Node kept = *widest;
  const Node tail = Split(kept).second;
  std::erase_if(choices, [&](Node choice) {
    if (choice == kept) return false;
    while (choice != tail) {
      if (!LengthsOf(Split(choice).first).known) return false;
      if (nodes_[choice].kind != Kind::kConcat && tail != kEmpty) return false;
      choice = Split(choice).second;
    }
    return true;
  });
}

uint8_t Regular::KnownAlive(const Entry& entry, std::span<const Node> children) {
  switch (entry.kind) {
    case Kind::kConcat: {
      const uint8_t a = nodes_[entry.a].alive, b = nodes_[entry.b].alive;
      return a == 1 || b == 1 ? 1 : a == 2 && b == 2 ? 2 : 0;
    }
    case Kind::kOr: {
      uint8_t known = 1;
      for (const Node child : children) {
        if (nodes_[child].alive == 2) return 2;
        if (nodes_[child].alive == 0) known = 0;
      }
      return known;
    }
    case Kind::kAnd:
      return entry.nullable ? 2 : LengthsMeet(children);
    case Kind::kRepeat:
      return entry.min == 0 || nodes_[entry.a].alive == 2 ? 2 : 0;
    default:
      return entry.nullable ? 2 : 0;
  }
}

bool Regular::AsLimited(Node node, Limited& limited) const {
  const auto [first, tail] = Split(node);
  if (nodes_[first].kind != Kind::kAnd || nodes_[first].b != 2) return false;
  const auto children = Children(nodes_[first]);
  for (const size_t counted : {0, 1}) {
    const Entry& count = nodes_[children[counted]];
    if (count.kind != Kind::kRepeat || count.a != any_character_) continue;
    limited = {children[1 - counted], count.min, count.max, tail};
    return true;
  }
  return false;
}

}  // namespace loopspec::grammar

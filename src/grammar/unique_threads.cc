// The automaton within arrays of items that all differ.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/trimmed.h"
#include "grammar/threads.h"

namespace loopspec::grammar {
namespace {

// A language of this many texts is taken as one without end: some text makes a value that is new.
constexpr uint32_t kManyTexts = 1024;
// Values that an array may have for this to hold.
constexpr size_t kFewValues = 900;
// Work to find out whether a language has kManyTexts texts.
constexpr int kMostCountingSteps = 20'000;
// Bytes that a search for an item that is new may try.
constexpr int kMostSearchSteps = 20'000;
constexpr int kDeepestExpression = 64;
constexpr size_t kLongestLoop = 48;

// What closes a value first, so that a search finds short texts.
const std::vector<uint8_t>& SearchOrder() {
  static const std::vector<uint8_t> order = [] {
    std::vector<uint8_t> bytes;
    for (const char c : std::string_view("\"}],:{[")) bytes.push_back(static_cast<uint8_t>(c));
    for (int byte = 0x21; byte < 0x100; ++byte) {
      if (std::ranges::find(bytes, byte) == bytes.end())
        bytes.push_back(static_cast<uint8_t>(byte));
    }
    for (const char c : std::string_view(" \t\n\r")) bytes.push_back(static_cast<uint8_t>(c));
    return bytes;
  }();
  return order;
}

bool IsWithin(const Expressions::Entry& entry) {
  return entry.kind == Expressions::Kind::kUnique &&
         static_cast<UniquePlace>(entry.min) != UniquePlace::kOpened;
}

}  // namespace

bool Automaton::ItemIsNew() {
  if (track_ == kAnyItems || track_ == kAskedItems) {
    asked_ = true;
    return true;
  }
  return unique_items_.LastIsNew(track_);
}

void Automaton::ExpandUnique(const Expressions::Entry& entry, uint32_t stack) {
  Expressions& expressions = rules_.expressions;
  const UniqueRules& rules = expressions.unique(entry.a);
  const uint32_t count = entry.b;
  const auto at = static_cast<UniquePlace>(entry.min);
  if (at == UniquePlace::kItemRead && !ItemIsNew()) return;
  if (at != UniquePlace::kCommaRead && count >= rules.min) {
    AddThread({at == UniquePlace::kOpened ? rules.close_empty : rules.close, 0}, stack);
  }
  const Expression item = rules.Item(count);
  if (item == kNoText) return;
  if (at == UniquePlace::kItemRead) {
    const Expression next = expressions.Unique(entry.a, count, UniquePlace::kCommaRead);
    AddThread({rules.comma, 0}, Push(next, stack));
  } else {
    const Expression next = expressions.Unique(entry.a, count + 1, UniquePlace::kItemRead);
    work_.push_back({item, Push(next, stack)});
  }
}

bool Automaton::EndsUniqueItem(uint32_t stack) const {
  return std::ranges::all_of(stacks_[stack], [&](uint32_t frame) {
    const Expressions::Entry& entry = rules_.expressions[frames_[frame][0].expression];
    return entry.kind == Expressions::Kind::kUnique &&
           static_cast<UniquePlace>(entry.min) == UniquePlace::kItemRead;
  });
}

uint8_t Automaton::MarksOf(const Frame& frame) {
  const uint8_t below = stack_marks_[frame.stack];
  const bool within = IsWithin(rules_.expressions[frame.expression]);
  if (!within && (below & kMarked) == 0) return kOpenEnded;
  uint8_t marks = kMarked;
  const bool ends = within && static_cast<UniquePlace>(rules_.expressions[frame.expression].min) ==
                                  UniquePlace::kItemRead;
  if (ends) return marks;  // what comes after the item does not change it
  if (IsOpenEndedExpression(frame.expression)) return marks | kOpenEnded;
  // After a comma the item must be found in what this frame reads.
  if (!within && (below & kOpenEnded) != 0) marks |= kOpenEnded;
  return marks;
}

// A loop that some text goes round: each round is another text. Tries one way alone, and marks all
// places on it.
bool Automaton::LeadsToLoop(Node node) {
  static const std::string_view kBytes =
      "a1/x.-_bcdefghijklmnopqrstuvwyzABCDEFGHIJKLMNOPQRSTUVWXYZ23456789@:#%+=,;!?&$*()<>[]{}|~^`'";
  std::vector<Node> path{node};
  while (path.size() < kLongestLoop) {
    Node next = kNothing;
    for (size_t i = 0; next <= kEmpty && i < kBytes.size(); ++i) {
      next = rules_.regular.Next(path.back(), static_cast<uint8_t>(kBytes[i]));
    }
    if (next <= kEmpty) return false;
    if (open_ended_.Find(next) == 1 || std::ranges::find(path, next) != path.end()) {
      for (const Node place : path) open_ended_.Set(place, 1);
      return true;
    }
    path.push_back(next);
  }
  return false;
}

// Whether there are many texts, without white space and escapes, so that all are different values,
// and for numbers without zeros at the end.
bool Automaton::IsOpenEndedNode(Node node) {
  const uint32_t known = open_ended_.Find(node);
  if (known != NumberMap::kMissing) return known == 1;
  Regular& regular = rules_.regular;
  // Strings with room for two characters of any kind: there are thousands.
  Regular::Counted counted;
  if (regular.AsCounted(node, counted) && counted.max >= 2 &&
      counted.item == regular.any_character()) {
    open_ended_.Set(node, 1);
    return true;
  }
  if (LeadsToLoop(node)) return true;
  // How many texts lead to a node; `true` when a point has been read.
  std::map<std::pair<Node, bool>, uint32_t> layer{{{node, false}, 1}};
  uint32_t texts = 0;
  int steps = 0;
  // As many as follow a place that is known have many before them.
  const auto is_many = [&](Node next) { return open_ended_.Find(next) == 1; };
  while (!layer.empty() && texts < kManyTexts && steps < kMostCountingSteps) {
    std::map<std::pair<Node, bool>, uint32_t> next_layer;
    for (const auto& [place, count] : layer) {
      for (int byte = 0x21; byte < 0xF5; ++byte, ++steps) {
        if (byte == '\\' || (place.second && byte == '0')) continue;
        const Node next = regular.Next(place.first, static_cast<uint8_t>(byte));
        if (next == kNothing) continue;
        if (next != node && is_many(next) && !place.second) texts = kManyTexts;
        if (texts >= kManyTexts) break;
        if (regular.Nullable(next)) texts += count;
        uint32_t& sum = next_layer[{next, place.second || byte == '.'}];
        sum = std::min(sum + count, kManyTexts);
      }
    }
    layer = std::move(next_layer);
  }
  const bool many = texts >= kManyTexts;
  open_ended_.Set(node, many ? 1 : 0);
  return many;
}

bool Automaton::IsOpenEndedExpression(Expression expression, int depth) {
  Expressions& expressions = rules_.expressions;
  if (depth > kDeepestExpression || !expressions.Matchable(expression)) return false;
  const uint64_t key = uint64_t{1} << 63 | expression;
  const uint32_t known = open_ended_.Find(key);
  if (known != NumberMap::kMissing) return known == 1;
  open_ended_.Set(key, 0);  // what contains itself says nothing
  const Expressions::Entry entry = expressions[expression];
  const auto part = [&](Expression e) { return IsOpenEndedExpression(e, depth + 1); };
  bool many = false;
  using Kind = Expressions::Kind;
  switch (entry.kind) {
    case Kind::kNone:
    case Kind::kEpsilon:
      break;
    case Kind::kTerminal:
      many = IsOpenEndedNode(entry.a);
      break;
    case Kind::kSequence:
      many = part(entry.a) || part(entry.b);
      break;
    case Kind::kChoice: {
      const auto list = expressions.Choices(entry);
      many = std::ranges::any_of(std::vector<Expression>(list.begin(), list.end()), part);
      break;
    }
    case Kind::kRepeat:
      // Arrays of different lengths differ.
      many = expressions.Matchable(entry.a) &&
             (entry.max == kUnbounded || entry.max - entry.min >= kManyTexts || part(entry.a));
      break;
    case Kind::kRule:
      many = part(expressions.rule(entry.a));
      break;
    case Kind::kMembers: {
      const ObjectRules& rules = expressions.object(entry.a);
      for (uint32_t i = 0; i < rules.properties.size() && !many; ++i) {
        many = expressions.MayFollow(entry, i) && part(rules.properties[i].value);
      }
      for (size_t i = 0; i < rules.others.size() && !many; ++i) {
        many = expressions.MayFollow(entry, kUnbounded) &&
               (IsOpenEndedNode(rules.others[i].key) || part(rules.others[i].value));
      }
      break;
    }
    case Kind::kUnique: {
      const Expression item = expressions.unique(entry.a).Item(entry.b);
      many = item != kNoText && part(item);
      break;
    }
  }
  open_ended_.Set(key, many ? 1 : 0);
  return many;
}

bool Automaton::IsOpenEnded(const Reading& reading) {
  if (reading.b == 0) return IsOpenEndedNode(reading.a);
  // A key that has been read in part: some property that it may become.
  Expressions& expressions = rules_.expressions;
  const Expressions::Entry members = expressions[reading.a];
  const ObjectRules& rules = expressions.object(members.a);
  for (const uint32_t property : rules.keys[reading.b - 1].below) {
    if (!expressions.MayFollow(members, property)) continue;
    if (IsOpenEndedExpression(rules.properties[property].value)) return true;
    const uint32_t place = rules.any_order ? expressions.UsedUp(members.b, property) : property + 1;
    if (IsOpenEndedExpression(
            expressions.Members(members.a, place, members.min + 1, MemberPlace::kAfterMember))) {
      return true;
    }
  }
  return false;
}

bool Automaton::StateIsOpenEnded(StateId state) {
  const UniqueItems::Track track = TrackOf(state);
  if (track == UniqueItems::kNone) return true;
  const bool many = KnowsItems(state) && unique_items_.CountKnown(track) > kFewValues;
  const auto list = Threads(state);
  for (const Thread& thread : std::vector<Thread>(list.begin(), list.end())) {
    if (!IsWithinUnique(thread.stack)) return true;
    if (many) continue;
    if (StackIsOpenEnded(thread.stack) || IsOpenEnded(Reading{thread.a, thread.b})) return true;
  }
  if (MayEnd(state)) return true;
  if (many || !KnowsItems(state)) return false;
  const std::vector<Thread> threads(list.begin(), list.end());
  return std::ranges::any_of(
             threads, [&](const Thread& thread) { return ItemEndIsOpenEnded(thread.stack); }) &&
         unique_items_.IsNewForSure(track);
}

bool Automaton::ItemEndIsOpenEnded(uint32_t stack) {
  const uint32_t known = item_ends_.Find(stack);
  if (known != NumberMap::kMissing) return known == 1;
  bool open_ended = false;
  // One way to take the stack is enough.
  for (uint32_t at = stack; at != 0;) {
    const uint32_t frame = stacks_[at][0];
    if (frame == 0) break;
    const uint32_t alone = InternStack(std::span(&frame, 1));
    if (EndsUniqueItem(alone)) {
      open_ended = StateIsOpenEnded(After({kEmpty, 0, alone}));
      break;
    }
    at = frames_[frame][0].stack;
  }
  item_ends_.Set(stack, open_ended ? 1 : 0);
  return open_ended;
}

bool Automaton::ItemIsNewForSure(uint32_t stack, UniqueItems::Track track, size_t longest) {
  return unique_items_.InString(track) && unique_items_.CountKnown(track) + longest <= kFewValues &&
         ItemEndIsOpenEnded(stack) && unique_items_.IsNewForSure(track);
}

bool Automaton::LeadsOnAfterNewItem(const Thread& thread, UniqueItems::Track track,
                                    size_t longest) {
  // Each value that becomes known takes a byte at least.
  return unique_items_.CountKnown(track) + longest <= kFewValues && StateIsOpenEnded(After(thread));
}

void Automaton::RefuseFewItems() {
  const Expressions& expressions = rules_.expressions;
  for (uint32_t array = 0; array < expressions.unique_count(); ++array) {
    const UniqueRules& rules = expressions.unique(array);
    // One item is always new.
    for (uint32_t i = 0; rules.min > 1 && i < std::min<size_t>(rules.min, rules.prefix.size() + 1);
         ++i) {
      if (rules.min <= rules.max && !IsOpenEndedExpression(rules.Item(i))) {
        Fail(
            "the schema's keyword uniqueItems cannot be enforced where minItems is {} and there "
            "are few different items",
            rules.min);
      }
    }
  }
}

bool Automaton::LeadsOn(StateId start) {
  const auto known = [&](StateId state) -> uint8_t& {
    if (leads_on_.size() <= state) leads_on_.resize(states_.size(), 0);
    return leads_on_[state];
  };
  if (known(start) != 0) return known(start) == 2;
  struct Visit {
    StateId state;
    size_t next;
  };
  std::vector<Visit> path{{start, 0}};
  std::vector<StateId> seen{start};
  bool found = StateIsOpenEnded(start);
  int steps = 0;
  while (!found && !path.empty() && steps < kMostSearchSteps) {
    Visit& top = path.back();
    if (top.next == SearchOrder().size()) {
      path.pop_back();
      continue;
    }
    const uint8_t byte = SearchOrder()[top.next++];
    if (IsWhite(byte) && !unique_items_.InString(TrackOf(top.state))) continue;
    ++steps;
    const StateId next = NextUnchecked(top.state, byte);
    if (next == kDead || known(next) == 1) continue;
    if (known(next) == 2 || StateIsOpenEnded(next)) {
      found = true;
      known(next) = 2;
    } else {
      known(next) = 1;  // until a way is found
      seen.push_back(next);
      path.push_back({next, 0});
    }
  }
  if (found) {
    // States that the search left behind may still lead on: they are looked at again when needed.
    for (const StateId state : seen) known(state) = 0;
    for (const Visit& visit : path) known(visit.state) = 2;
  } else {
    for (const StateId state : seen) known(state) = 1;
  }
  return found;
}

}  // namespace loopspec::grammar

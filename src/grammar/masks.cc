#include "grammar/masks.h"

#include <algorithm>
#include <tuple>

#include "grammar/characters.h"

namespace loopspec::grammar {
namespace {

// Bytes of masks that a grammar keeps; when they are more, all are forgotten.
constexpr size_t kMaxKept = size_t{64} << 20;
// Nodes for which the bytes are kept after which they stay as they are.
constexpr size_t kMaxLoops = 256;
// A search for whether a thread takes all plain characters makes so many new states at most and
// visits so many places; when it was given up so often, none is begun any more.
constexpr int kMostSteps = 400;
constexpr size_t kMostPlaces = 2000;
constexpr int kMostGivenUp = 16;

// Whether the bytes neither name a member, which may have come before, nor open an array within an
// item, nor have an escape.
bool IsSimpleEnd(std::string_view bytes) {
  return bytes.find_first_of(":[\\") == std::string_view::npos;
}

void AddTo(std::vector<uint32_t>& words, const std::vector<uint32_t>& more) {
  for (size_t w = 0; w < words.size(); ++w) words[w] |= more[w];
}

// Plain characters byte by byte: the places within one, from the first (0) on, and the bytes that
// lead from each to the next.
struct PlainStep {
  uint8_t low, high;
  uint32_t next;
};
std::span<const PlainStep> PlainSteps(uint32_t place) {
  static const std::vector<std::vector<PlainStep>> steps = {
      {{0x20, 0x21, 0},
       {0x23, 0x5B, 0},
       {0x5D, 0x7F, 0},
       {0xC2, 0xDF, 1},
       {0xE0, 0xE0, 4},
       {0xE1, 0xE1, 2},
       {0xE2, 0xE2, 8},
       {0xE3, 0xEC, 2},
       {0xED, 0xED, 5},
       {0xEE, 0xEF, 2},
       {0xF0, 0xF0, 6},
       {0xF1, 0xF3, 3},
       {0xF4, 0xF4, 7}},
      {{0x80, 0xBF, 0}},                   // 1: one more byte
      {{0x80, 0xBF, 1}},                   // 2
      {{0x80, 0xBF, 2}},                   // 3
      {{0xA0, 0xBF, 1}},                   // 4: after E0
      {{0x80, 0x9F, 1}},                   // 5: after ED, no surrogates
      {{0x90, 0xBF, 2}},                   // 6: after F0
      {{0x80, 0x8F, 2}},                   // 7: after F4
      {{0x80, 0x80, 9}, {0x81, 0xBF, 1}},  // 8: after E2
      {{0x80, 0xA7, 0}, {0xAA, 0xBF, 0}},  // 9: after E2 80, neither U+2028 nor U+2029
  };
  return steps[place];
}

}  // namespace

MaskMaker::MaskMaker(Automaton& automaton, const Vocabulary& vocabulary)
    : automaton_(automaton), vocabulary_(vocabulary) {
  static const CharacterSet kPlain{{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x2027}, {0x202A, 0x10FFFF}};
  plain_ = CharacterNode(automaton.regular(), kPlain, Writing::kUtf8);
  path_.resize(vocabulary.longest() + 1);
  nodes_.resize(vocabulary.longest() + 1);
  states_.resize(vocabulary.longest() + 1);
  ended_.resize(vocabulary.longest() + 1);
  for (const int32_t id : vocabulary.specials()) {
    if (automaton.KnowsSpecial(vocabulary.bytes(id))) specials_.push_back(id);
  }
}

void MaskMaker::Set(const Vocabulary::Trie& trie, const Vocabulary::TrieNode& node,
                    std::vector<uint32_t>& words) const {
  for (uint32_t i = 0; i < node.ids; ++i) {
    const auto id = static_cast<uint32_t>(trie.ids[node.first_id + i]);
    words[id / 32] |= 1u << (id % 32);
  }
}

uint32_t MaskMaker::LongestRun(uint32_t index, Node item) {
  const uint64_t key = uint64_t{index} << 32 | item;
  const uint32_t known = runs_.Find(key);
  if (known != NumberMap::kMissing) return known;
  Regular& regular = automaton_.regular();
  path_[0] = {regular.Repeat(item, 0, kUnbounded), 0};
  uint32_t longest = 0;
  const Vocabulary::Trie& trie = vocabulary_.tries()[index];
  trie.Walk(0, trie.size(), [&](uint32_t, const Vocabulary::TrieNode& node) {
    const Node next = regular.Next(path_[node.depth - 1].a, node.byte);
    if (next == kNothing) return false;
    longest = std::max<uint32_t>(longest, node.depth);
    path_[node.depth] = {next, 0};
    return true;
  });
  runs_.Set(key, longest);
  return longest;
}

Node MaskMaker::Clamped(Node node, uint32_t run, bool slice) {
  Regular& regular = automaton_.regular();
  Regular::Limited limited;
  if (regular.AsLimited(node, limited)) {
    // A token of a slice has one character at least, and nothing else comes after it.
    const uint32_t most_min = slice && TakesNoPlain(limited.tail) ? 1 : 0;
    const Regular::Lengths lengths = regular.LengthsOf(limited.language);
    if (limited.min > most_min || !lengths.known ||
        limited.max < uint64_t{run} + lengths.completion) {
      return node;
    }
    return Clamped(regular.Concat(limited.language, limited.tail), run, slice);
  }
  Regular::Counted counted;
  if (!regular.AsCounted(node, counted)) return node;
  const uint32_t min = std::min(counted.min, run + 1);
  const uint32_t max = counted.max > run ? kUnbounded : counted.max;
  if (min == counted.min && max == counted.max) return node;
  return regular.Concat(regular.Repeat(counted.item, min, max), counted.tail);
}

MaskMaker::Plain MaskMaker::CountedPlain(Node node) {
  Regular& regular = automaton_.regular();
  const auto [first, tail] = regular.Split(node);
  if (regular.Nullable(tail)) return {};
  uint32_t most = kUnbounded;
  uint32_t left_out = 0;  // characters of the longest text that a complement leaves out, and one
  bool counts = false;    // whether there is a count at all
  bool exact = true;
  for (const Node part : regular.Parts(first)) {
    if (const Node inner = regular.LeftOut(part); inner != kNothing) {
      // Some longer text is left.
      const Regular::Lengths lengths = regular.LengthsOf(inner);
      if (!lengths.known || lengths.max == kUnbounded) return {};
      left_out = std::max(left_out, lengths.max + 1);
      continue;
    }
    Regular::Counted counted;
    if (!regular.AsCounted(part, counted) || counted.tail != kEmpty) return {};
    uint32_t takes = takes_plain_.Find(counted.item);
    if (takes == NumberMap::kMissing) {
      takes = regular.Contains(counted.item, plain_) ? 1 : 0;
      takes_plain_.Set(counted.item, takes);
    }
    if (takes == 0) return {};
    counts = true;
    most = std::min(most, counted.max);
    exact = exact && regular.LengthsOf(counted.item).max == 1;
  }
  if (!counts) return {};
  if (left_out > 0 && most != kUnbounded) most = most > left_out ? most - left_out : 0;
  return {most, exact && left_out == 0 && most > 0 && TakesNoPlain(tail)};
}

MaskMaker::Plain MaskMaker::PlainCharacters(Node node) {
  if (const Plain plain = CountedPlain(node); plain.most > 0) return plain;
  Regular& regular = automaton_.regular();
  Regular::Limited limited;
  if (!regular.AsLimited(node, limited)) return {TakesAnyPlain(node) ? kUnbounded : 0, false};
  const Regular::Lengths lengths = regular.LengthsOf(limited.language);
  if (!lengths.known || limited.min > 1 || limited.max <= lengths.completion ||
      !TakesAnyPlain(regular.Concat(limited.language, limited.tail))) {
    return {};
  }
  return {limited.max - lengths.completion, false};
}

bool MaskMaker::TakesNoPlain(Node node) {
  const uint32_t known = takes_no_plain_.Find(node);
  if (known != NumberMap::kMissing) return known == 1;
  bool none = true;
  for (int byte = 0x20; byte < 0x100 && none; ++byte) {
    if (byte == '"' || byte == '\\') continue;
    none = automaton_.regular().Next(node, static_cast<uint8_t>(byte)) == kNothing;
  }
  takes_no_plain_.Set(node, none ? 1 : 0);
  return none;
}

bool MaskMaker::TakesAnyPlain(Node start) {
  const uint32_t known = takes_any_plain_.Find(start);
  if (known != NumberMap::kMissing) return known == 1;
  Regular& regular = automaton_.regular();
  // A place of an intersection costs a search for what follows it.
  if (gave_up_ == kMostGivenUp || !regular.IsPlain(start)) return false;
  struct Visit {
    Node node;
    uint32_t place;
  };
  std::vector<Visit> visits{{start, 0}};
  NumberMap seen;
  seen.Set(uint64_t{start} << 8, 1);
  bool all = !regular.Nullable(start);
  int made = 0;
  for (size_t i = 0; all && i < visits.size(); ++i) {
    const Visit visit = visits[i];
    for (const PlainStep& step : PlainSteps(visit.place)) {
      for (uint32_t byte = step.low; all && byte <= step.high; ++byte) {
        made += regular.KnowsNext(visit.node, static_cast<uint8_t>(byte)) ? 0 : 1;
        const Node next = regular.Next(visit.node, static_cast<uint8_t>(byte));
        all = next != kNothing && !regular.Nullable(next);
        const uint64_t key = uint64_t{next} << 8 | step.next;
        if (!all || seen.Find(key) != NumberMap::kMissing) continue;
        seen.Set(key, 1);
        visits.push_back({next, step.next});
      }
    }
    if (all && (made > kMostSteps || visits.size() > kMostPlaces)) {
      ++gave_up_;
      all = false;
    }
  }
  takes_any_plain_.Set(start, all ? 1 : 0);
  for (const Visit& visit : visits) {
    if (all && visit.place == 0) takes_any_plain_.Set(visit.node, 1);
  }
  return all;
}

bool MaskMaker::StaysAfter(Node node, const std::bitset<256>& bytes) {
  uint32_t number = loop_numbers_.Find(node);
  if (number == NumberMap::kMissing) {
    if (loops_.size() == kMaxLoops) {
      loops_.clear();
      loop_numbers_.Clear();
    }
    number = static_cast<uint32_t>(loops_.size());
    loops_.push_back({});
    loop_numbers_.Set(node, number);
  }
  Loop& loop = loops_[number];
  if ((bytes & loop.leaves).any()) return false;
  std::bitset<256> left = bytes & ~loop.stays;
  for (size_t byte = 0; left.any(); ++byte) {
    if (!left[byte]) continue;
    left.reset(byte);
    const bool stays = automaton_.regular().Next(node, static_cast<uint8_t>(byte)) == node;
    (stays ? loop.stays : loop.leaves).set(byte);
    if (!stays) return false;
  }
  return true;
}

void MaskMaker::WalkRegular(uint32_t index, Node start, ReadingMask& mask) {
  const Vocabulary::Trie& trie = vocabulary_.tries()[index];
  Regular& regular = automaton_.regular();
  nodes_[0] = start;
  trie.Walk(0, trie.size(), [&](uint32_t i, const Vocabulary::TrieNode& node) {
    const Node next = regular.Next(nodes_[node.depth - 1], node.byte);
    if (next == kNothing) return false;
    if (node.ids > 0) Set(trie, node, mask.within);
    if (node.end > i + 1 && regular.Nullable(next)) mask.exits.push_back({i, 0});
    nodes_[node.depth] = next;
    // Below a loop all tokens are within it.
    if (const uint32_t below = trie.bytes_below[i]; below != Vocabulary::Trie::kFew &&
                                                    !regular.Nullable(next) &&
                                                    StaysAfter(next, trie.byte_sets[below])) {
      for (const int32_t id : trie.IdsFrom(i)) {
        mask.within[static_cast<size_t>(id) / 32] |= 1u << (static_cast<size_t>(id) % 32);
      }
      return false;
    }
    return next > kEmpty;
  });
}

void MaskMaker::Walk(uint32_t index, const Reading& reading, ReadingMask& mask) {
  if (reading.b == 0) {
    WalkRegular(index, reading.a, mask);
  } else {
    WalkKeys(index, reading, mask.within, mask.exits);
  }
}

void MaskMaker::WalkKeys(uint32_t index, const Reading& reading, std::vector<uint32_t>& within,
                         std::vector<Exit>& exits) {
  const Vocabulary::Trie& trie = vocabulary_.tries()[index];
  path_[0] = reading;
  trie.Walk(0, trie.size(), [&](uint32_t i, const Vocabulary::TrieNode& node) {
    const Reading next = automaton_.Step(path_[node.depth - 1], node.byte);
    if (next.a == kNothing) return false;
    Set(trie, node, within);
    if (node.end > i + 1 && automaton_.MayStop(next)) exits.push_back({i, next.b});
    path_[node.depth] = next;
    return automaton_.MayGoOn(next);
  });
}

void MaskMaker::AddKeys(const Automaton::Thread& thread, std::vector<uint32_t>& words) {
  for (uint32_t i = 0; i < vocabulary_.tries().size(); ++i) {
    exits_.clear();
    WalkKeys(i, {thread.a, thread.b}, words, exits_);
    for (const Exit& exit : exits_) {
      WalkState(i, exit.node, automaton_.After({thread.a, exit.b, thread.stack}), words);
    }
  }
}

MaskMaker::ReadingMask& MaskMaker::MaskOf(uint32_t trie, const Reading& given) {
  Reading reading = given;
  if (reading.b == 0) {
    Regular& regular = automaton_.regular();
    Regular::Limited limited;
    if (regular.AsLimited(reading.a, limited)) {
      const uint32_t characters = vocabulary_.tries()[trie].characters;
      const bool slice = characters > 0;
      const uint32_t run = slice ? characters : LongestRun(trie, regular.any_character());
      reading.a = Clamped(reading.a, run, slice);
    }
    Regular::Counted counted;
    if (regular.AsCounted(reading.a, counted)) {
      reading.a = Clamped(reading.a, LongestRun(trie, counted.item));
    }
  }
  ReadingMask& mask = readings_[{reading.a, reading.b, trie}];
  if (!mask.within.empty()) return mask;
  mask.within.resize(vocabulary_.words());
  Walk(trie, reading, mask);
  kept_ += mask.within.size() * sizeof(uint32_t) + mask.exits.size() * sizeof(Exit);
  return mask;
}

void MaskMaker::WalkState(uint32_t index, uint32_t from, StateId state,
                          std::vector<uint32_t>& words) {
  if (state == kDead) return;
  const Vocabulary::Trie& trie = vocabulary_.tries()[index];
  states_[trie.nodes[from].depth] = state;
  trie.Walk(from + 1, trie.nodes[from].end, [&](uint32_t, const Vocabulary::TrieNode& node) {
    const StateId next = automaton_.Next(states_[node.depth - 1], node.byte);
    if (next == kDead) return false;
    Set(trie, node, words);
    states_[node.depth] = next;
    return true;
  });
}

std::string_view MaskMaker::BytesTo(const Vocabulary::Trie& trie, uint32_t node) const {
  uint32_t below = node;
  while (trie.nodes[below].ids == 0) ++below;
  const std::string& bytes = vocabulary_.bytes(trie.ids[trie.nodes[below].first_id]);
  return std::string_view(bytes).substr(0, trie.nodes[node].depth);
}

bool MaskMaker::MayFollow(const Vocabulary::Trie& trie, uint32_t node, StateId state) {
  for (const char c : BytesTo(trie, node)) {
    state = automaton_.Next(state, static_cast<uint8_t>(c));
    if (state == kDead) return false;
  }
  return true;
}

void MaskMaker::FindNarrow(uint32_t index, const Reading& reading, ReadingMask& mask) {
  if (mask.has_narrow) return;
  mask.has_narrow = true;
  const Vocabulary::Trie& trie = vocabulary_.tries()[index];
  path_[0] = reading;
  trie.Walk(0, trie.size(), [&](uint32_t i, const Vocabulary::TrieNode& node) {
    const Reading next = automaton_.Step(path_[node.depth - 1], node.byte);
    if (next.a == kNothing) return false;
    const bool goes_on = automaton_.MayGoOn(next);
    if (node.ids > 0 && !(goes_on && automaton_.IsOpenEnded(next))) {
      const auto before = std::span(path_).first(node.depth);
      mask.narrow.push_back({i, !goes_on && std::ranges::all_of(before, [&](const Reading& place) {
                               return automaton_.IsOpenEnded(place);
                             })});
    }
    path_[node.depth] = next;
    return goes_on;
  });
}

void MaskMaker::WalkUnique(uint32_t index, uint32_t from, StateId after, StateId state,
                           bool item_is_new, std::vector<uint32_t>& words) {
  const Vocabulary::Trie& trie = vocabulary_.tries()[index];
  states_[trie.nodes[from].depth] = after;
  ended_[trie.nodes[from].depth] = !item_is_new;
  trie.Walk(from + 1, trie.nodes[from].end, [&](uint32_t i, const Vocabulary::TrieNode& node) {
    const StateId next = automaton_.Next(states_[node.depth - 1], node.byte);
    if (next == kDead) return false;
    bool ended = ended_[node.depth - 1];
    const bool asked = automaton_.TrackOf(next) == Automaton::kAskedItems;
    if (asked && !ended && IsSimpleEnd(BytesTo(trie, i))) {
      ended = true;
    } else if (asked) {
      // The items decide, for this token and all that begin with it.
      for (uint32_t k = i; k < node.end; ++k) {
        if (trie.nodes[k].ids > 0 && MayFollow(trie, k, state)) Set(trie, trie.nodes[k], words);
      }
      return false;
    }
    if (node.ids > 0 && (automaton_.StateIsOpenEnded(next) || MayFollow(trie, i, state))) {
      Set(trie, node, words);
    }
    states_[node.depth] = next;
    ended_[node.depth] = ended;
    return true;
  });
}

void MaskMaker::AddUnique(StateId state, const Automaton::Thread& thread,
                          std::vector<uint32_t>& words) {
  const Reading reading{thread.a, thread.b};
  const bool open_ended = automaton_.StackIsOpenEnded(thread.stack);
  const UniqueItems::Track track = automaton_.TrackOf(state);
  const uint32_t plain = thread.b == 0 ? PlainCharacters(thread.a).most : 0;
  const bool ends_item = thread.b == 0 && automaton_.EndsUniqueItem(thread.stack);
  UniqueItems& items = automaton_.unique_items();
  UniqueItems::Rests rests;
  if (ends_item) rests = items.RestsOf(track);
  const bool leads_on =
      ends_item && automaton_.LeadsOnAfterNewItem(thread, track, vocabulary_.longest());
  const bool is_new = thread.b == 0 && !ends_item && !open_ended &&
                      automaton_.ItemIsNewForSure(thread.stack, track, vocabulary_.longest());
  for (uint32_t i = 0; i < vocabulary_.tries().size(); ++i) {
    const Vocabulary::Trie& trie = vocabulary_.tries()[i];
    if (trie.nodes.empty()) continue;
    // One more character must have room, so that there is a choice.
    if (trie.characters > 0 && trie.characters < plain) {
      AddTo(words, trie.mask);
      continue;
    }
    ReadingMask& mask = MaskOf(i, reading);
    if (!open_ended) FindNarrow(i, reading, mask);
    if (open_ended || mask.narrow.empty()) {
      AddTo(words, mask.within);
    } else {
      std::vector<uint32_t> within = mask.within;
      for (const auto [node, ends] : mask.narrow) {
        const std::string_view bytes = BytesTo(trie, node);
        if (ends && ends_item && !items.LastIsNew(track, rests, bytes)) {
          // Not this one.
        } else if ((ends && leads_on) || (is_new && IsSimpleEnd(bytes)) ||
                   MayFollow(trie, node, state)) {
          continue;
        }
        for (uint32_t k = 0; k < trie.nodes[node].ids; ++k) {
          const auto id = static_cast<uint32_t>(trie.ids[trie.nodes[node].first_id + k]);
          within[id / 32] &= ~(1u << (id % 32));
        }
      }
      AddTo(words, within);
    }
    for (const Exit& exit : mask.exits) {
      if (ends_item && !items.LastIsNew(track, rests, BytesTo(trie, exit.node))) continue;
      const StateId after = automaton_.After({thread.a, exit.b, thread.stack});
      if (ends_item || automaton_.TrackOf(after) != Automaton::kAskedItems) {
        WalkUnique(i, exit.node, after, state, is_new, words);
        continue;
      }
      for (uint32_t k = exit.node + 1; k < trie.nodes[exit.node].end; ++k) {
        if (trie.nodes[k].ids > 0 && MayFollow(trie, k, state)) Set(trie, trie.nodes[k], words);
      }
    }
  }
}

Mask MaskMaker::Make(StateId state) {
  uint32_t canonical = canonical_states_.Find(state);
  if (canonical == NumberMap::kMissing) {
    std::vector<Automaton::Thread> threads;
    for (const Automaton::Thread& thread : automaton_.Threads(state)) threads.push_back(thread);
    for (Automaton::Thread& thread : threads) {
      // No token reads more items than the longest has bytes.
      if (thread.b == 0) thread.a = Clamped(thread.a, static_cast<uint32_t>(vocabulary_.longest()));
    }
    std::ranges::sort(threads, [](const auto& x, const auto& y) {
      return std::tie(x.a, x.b, x.stack) < std::tie(y.a, y.b, y.stack);
    });
    canonical = automaton_.Intern(threads, automaton_.MayEnd(state), automaton_.TrackOf(state));
    canonical_states_.Set(state, canonical);
  }
  const auto found = masks_.find(canonical);
  if (found != masks_.end()) return found->second;
  if (kept_ > kMaxKept) {
    readings_.clear();
    masks_.clear();
    kept_ = 0;
  }

  auto words = std::make_shared<std::vector<uint32_t>>(vocabulary_.words());
  const auto list = automaton_.Threads(canonical);
  const std::vector<Automaton::Thread> threads(list.begin(), list.end());
  for (const Automaton::Thread& thread : threads) {
    if (automaton_.IsWithinUnique(thread.stack)) {
      AddUnique(state, thread, *words);
      continue;
    }
    if (thread.b != 0) {
      AddKeys(thread, *words);
      continue;
    }
    const Plain plain = PlainCharacters(thread.a);
    for (uint32_t i = 0; i < vocabulary_.tries().size(); ++i) {
      const Vocabulary::Trie& trie = vocabulary_.tries()[i];
      if (trie.nodes.empty()) continue;
      if (trie.characters > 0 && (plain.exact || trie.characters <= plain.most)) {
        if (const auto* const all = trie.UpTo(plain.most)) AddTo(*words, *all);
        continue;
      }
      const ReadingMask& mask = MaskOf(i, {thread.a, 0});
      AddTo(*words, mask.within);
      for (const Exit& exit : mask.exits) {
        WalkState(i, exit.node, automaton_.After({thread.a, exit.b, thread.stack}), *words);
      }
    }
  }
  const std::span<const int32_t> specials =
      automaton_.IsFree(state) ? vocabulary_.specials() : std::span<const int32_t>(specials_);
  for (const int32_t id : specials) {
    if (automaton_.NextSpecial(state, vocabulary_.bytes(id)) == kDead) continue;
    (*words)[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  }
  if (automaton_.MayEnd(state)) {
    for (const int32_t id : vocabulary_.ends()) {
      (*words)[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    }
  }
  kept_ += words->size() * sizeof(uint32_t);
  Mask mask = std::move(words);
  masks_.emplace(canonical, mask);
  return mask;
}

}  // namespace loopspec::grammar

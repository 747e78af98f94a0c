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

}  // namespace

MaskMaker::MaskMaker(Automaton& automaton, const Vocabulary& vocabulary)
    : automaton_(automaton), vocabulary_(vocabulary) {
  static const CharacterSet kPlain{{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x2027}, {0x202A, 0x10FFFF}};
  plain_ = CharacterNode(automaton.regular(), kPlain, Writing::kUtf8);
  path_.resize(vocabulary.longest() + 1);
  nodes_.resize(vocabulary.longest() + 1);
  states_.resize(vocabulary.longest() + 1);
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

Node MaskMaker::Clamped(Node node, uint32_t run) {
  Regular& regular = automaton_.regular();
  Regular::Limited limited;
  if (regular.AsLimited(node, limited)) {
    const Regular::Lengths lengths = regular.LengthsOf(limited.language);
    if (!lengths.known || limited.max < uint64_t{run} + lengths.completion) return node;
    return Clamped(regular.Concat(limited.language, limited.tail), run);
  }
  Regular::Counted counted;
  if (!regular.AsCounted(node, counted)) return node;
  const uint32_t min = std::min(counted.min, run + 1);
  const uint32_t max = counted.max > run ? kUnbounded : counted.max;
  if (min == counted.min && max == counted.max) return node;
  return regular.Concat(regular.Repeat(counted.item, min, max), counted.tail);
}

uint32_t MaskMaker::PlainCharacters(Node node) {
  Regular& regular = automaton_.regular();
  const auto [first, tail] = regular.Split(node);
  if (regular.Nullable(tail)) return 0;
  uint32_t most = kUnbounded;
  for (const Node part : regular.Parts(first)) {
    Regular::Counted counted;
    if (!regular.AsCounted(part, counted) || counted.tail != kEmpty) return 0;
    uint32_t takes = takes_plain_.Find(counted.item);
    if (takes == NumberMap::kMissing) {
      takes = regular.Contains(counted.item, plain_) ? 1 : 0;
      takes_plain_.Set(counted.item, takes);
    }
    if (takes == 0) return 0;
    most = std::min(most, counted.max);
  }
  return most;
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
      reading.a = Clamped(reading.a, LongestRun(trie, regular.any_character()));
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
    if (node.ids > 0 && !(goes_on && automaton_.IsOpenEnded(next))) mask.narrow.push_back(i);
    path_[node.depth] = next;
    return goes_on;
  });
}

void MaskMaker::WalkUnique(uint32_t index, uint32_t from, StateId after, StateId state,
                           std::vector<uint32_t>& words) {
  const Vocabulary::Trie& trie = vocabulary_.tries()[index];
  states_[trie.nodes[from].depth] = after;
  trie.Walk(from + 1, trie.nodes[from].end, [&](uint32_t i, const Vocabulary::TrieNode& node) {
    const StateId next = automaton_.Next(states_[node.depth - 1], node.byte);
    if (next == kDead) return false;
    if (automaton_.TrackOf(next) == Automaton::kAskedItems) {
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
    return true;
  });
}

void MaskMaker::AddUnique(StateId state, const Automaton::Thread& thread,
                          std::vector<uint32_t>& words) {
  const Reading reading{thread.a, thread.b};
  const bool open_ended = automaton_.StackIsOpenEnded(thread.stack);
  const UniqueItems::Track track = automaton_.TrackOf(state);
  const uint32_t plain = thread.b == 0 ? PlainCharacters(thread.a) : 0;
  for (uint32_t i = 0; i < vocabulary_.tries().size(); ++i) {
    const Vocabulary::Trie& trie = vocabulary_.tries()[i];
    if (trie.nodes.empty()) continue;
    // One more character must have room, so that there is a choice.
    if (trie.characters > 0 && trie.characters < plain) {
      for (size_t w = 0; w < words.size(); ++w) words[w] |= trie.mask[w];
      continue;
    }
    ReadingMask& mask = MaskOf(i, reading);
    if (!open_ended) FindNarrow(i, reading, mask);
    if (open_ended || mask.narrow.empty()) {
      for (size_t w = 0; w < words.size(); ++w) words[w] |= mask.within[w];
    } else {
      std::vector<uint32_t> within = mask.within;
      for (const uint32_t node : mask.narrow) {
        if (MayFollow(trie, node, state)) continue;
        for (uint32_t k = 0; k < trie.nodes[node].ids; ++k) {
          const auto id = static_cast<uint32_t>(trie.ids[trie.nodes[node].first_id + k]);
          within[id / 32] &= ~(1u << (id % 32));
        }
      }
      for (size_t w = 0; w < words.size(); ++w) words[w] |= within[w];
    }
    const bool ends_item = thread.b == 0 && automaton_.EndsUniqueItem(thread.stack);
    for (const Exit& exit : mask.exits) {
      if (ends_item && !automaton_.unique_items().LastIsNew(track, BytesTo(trie, exit.node))) {
        continue;
      }
      const StateId after = automaton_.After({thread.a, exit.b, thread.stack});
      if (ends_item || automaton_.TrackOf(after) != Automaton::kAskedItems) {
        WalkUnique(i, exit.node, after, state, words);
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
    const uint32_t plain = PlainCharacters(thread.a);
    for (uint32_t i = 0; i < vocabulary_.tries().size(); ++i) {
      const Vocabulary::Trie& trie = vocabulary_.tries()[i];
      if (trie.nodes.empty()) continue;
      const bool whole = trie.characters > 0 && trie.characters <= plain;
      const ReadingMask* mask = whole ? nullptr : &MaskOf(i, {thread.a, 0});
      const std::vector<uint32_t>& within = whole ? trie.mask : mask->within;
      for (size_t w = 0; w < words->size(); ++w) (*words)[w] |= within[w];
      if (whole) continue;
      for (const Exit& exit : mask->exits) {
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

#include "grammar/vocabulary.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/utf8.h"

namespace loopspec::grammar {
namespace {

// Longer tokens are left out: nothing needs them, and depths fit in 16 bits.
constexpr size_t kLongestToken = 4096;
// Characters of the tokens in a slice, at most. Slices let a counted string take all short tokens
// at once.
constexpr uint32_t kSlices[] = {4, 8, 16, 32, 64, ~0u};

// Nodes below a node for which the bytes there are kept.
constexpr uint32_t kManyNodes = 16;

// How many characters, if all of them stand for themselves in a JSON string; 0 if not. U+2028 and
// U+2029 do, but the dot of a pattern leaves them out.
uint32_t PlainCharacters(const std::string& bytes) {
  if (!IsValidUtf8(bytes)) return 0;
  uint32_t count = 0;
  for (size_t i = 0; i < bytes.size(); ++count) {
    const CodePoint c = DecodeUtf8(bytes, i);
    if (c.value < 0x20 || c.value == '"' || c.value == '\\' || c.value == 0x2028 ||
        c.value == 0x2029) {
      return 0;
    }
    i += static_cast<size_t>(c.length);
  }
  return count;
}

void FindBytesBelow(Vocabulary::Trie& trie) {
  std::unordered_map<std::bitset<256>, uint32_t> numbers;
  trie.bytes_below.assign(trie.nodes.size(), Vocabulary::Trie::kFew);
  // By depth: the bytes of the nodes after this one that are below the same parent, and below them.
  std::vector<std::bitset<256>> bytes(2);
  for (auto i = static_cast<uint32_t>(trie.nodes.size()); i-- > 0;) {
    const Vocabulary::TrieNode& node = trie.nodes[i];
    const size_t depth = node.depth;
    if (bytes.size() < depth + 2) bytes.resize(depth + 2);
    std::bitset<256>& below = bytes[depth + 1];
    if (node.end - i > kManyNodes) {
      const auto [found, added] =
          numbers.emplace(below, static_cast<uint32_t>(trie.byte_sets.size()));
      if (added) trie.byte_sets.push_back(below);
      trie.bytes_below[i] = found->second;
    }
    bytes[depth] |= below;
    bytes[depth].set(node.byte);
    below.reset();
  }
}

Vocabulary::Trie MakeTrie(std::vector<int32_t> ids, const std::vector<Vocabulary::Token>& tokens,
                          size_t words) {
  const auto bytes = [&](int32_t id) -> const std::string& {
    return tokens[static_cast<size_t>(id)].bytes;
  };
  std::ranges::stable_sort(ids, [&](int32_t a, int32_t b) { return bytes(a) < bytes(b); });
  Vocabulary::Trie trie;
  trie.mask.resize(words);
  std::vector<uint32_t> path;  // the nodes from the root to the last token
  const auto close = [&](size_t depth) {
    while (path.size() > depth) {
      trie.nodes[path.back()].end = static_cast<uint32_t>(trie.nodes.size());
      path.pop_back();
    }
  };
  const std::string* previous = nullptr;
  for (const int32_t id : ids) {
    const std::string& text = bytes(id);
    size_t shared = 0;
    if (previous != nullptr) {
      while (shared < text.size() && shared < previous->size() &&
             text[shared] == (*previous)[shared]) {
        ++shared;
      }
    }
    close(shared);
    for (size_t i = shared; i < text.size(); ++i) {
      path.push_back(static_cast<uint32_t>(trie.nodes.size()));
      trie.nodes.push_back({0, static_cast<uint32_t>(trie.ids.size()), 0,
                            static_cast<uint16_t>(i + 1), static_cast<uint8_t>(text[i])});
    }
    ++trie.nodes[path.back()].ids;
    trie.ids.push_back(id);
    trie.mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    previous = &text;
  }
  close(0);
  FindBytesBelow(trie);
  return trie;
}

// `counts`: the characters of each token.
void FindShorter(Vocabulary::Trie& trie, const std::vector<uint32_t>& counts) {
  std::vector<int32_t> ids = trie.ids;
  const auto count = [&](int32_t id) { return counts[static_cast<size_t>(id)]; };
  std::ranges::sort(ids, {}, count);
  std::vector<uint32_t> mask(trie.mask.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    mask[static_cast<size_t>(ids[i]) / 32] |= 1u << (ids[i] % 32);
    if (i + 1 == ids.size() || count(ids[i + 1]) > count(ids[i])) {
      trie.shorter.push_back({count(ids[i]), mask});
    }
  }
}

}  // namespace

const std::vector<uint32_t>* Vocabulary::Trie::UpTo(uint32_t most) const {
  const auto after = std::ranges::upper_bound(shorter, most, {}, &Shorter::characters);
  return after == shorter.begin() ? nullptr : &std::prev(after)->mask;
}

Vocabulary::Vocabulary(std::vector<Token> tokens, std::vector<int32_t> ends)
    : tokens_(std::move(tokens)), ends_(std::move(ends)) {
  for (const int32_t end : ends_) {
    if (end < 0 || end >= size()) Fail("end token {} is not in a vocabulary of {}", end, size());
  }
  std::vector<std::vector<int32_t>> parts(1 + std::size(kSlices));
  std::vector<uint32_t> most(parts.size());  // characters of a token of the part
  std::vector<uint32_t> counts(tokens_.size());
  for (int32_t id = 0; id < size(); ++id) {
    const Token& token = tokens_[static_cast<size_t>(id)];
    if (token.bytes.empty() || token.bytes.size() > kLongestToken || IsEnd(id)) continue;
    if (token.special) {
      specials_.push_back(id);
      continue;
    }
    longest_ = std::max(longest_, token.bytes.size());
    const uint32_t characters = PlainCharacters(token.bytes);
    counts[static_cast<size_t>(id)] = characters;
    size_t part = 0;
    if (characters > 0) {
      part = 1;
      while (characters > kSlices[part - 1]) ++part;
    }
    most[part] = std::max(most[part], characters);
    parts[part].push_back(id);
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    tries_.push_back(MakeTrie(std::move(parts[i]), tokens_, words()));
    tries_.back().characters = most[i];
    if (most[i] > 0) FindShorter(tries_.back(), counts);
  }
}

bool Vocabulary::IsEnd(int32_t id) const {
  return std::ranges::find(ends_, id) != ends_.end();
}

}  // namespace loopspec::grammar

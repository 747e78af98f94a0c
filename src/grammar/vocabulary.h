// A vocabulary as a grammar sees it: the bytes of each token, in tries that share prefixes.
#pragma once

#include <bitset>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace loopspec::grammar {

class Vocabulary {
 public:
  struct Token {
    // What the token adds to a text. Empty: never allowed, unless it ends the text.
    std::string bytes;
    // A mark such as the end of thinking: allowed before the grammar starts (Grammar::StartAfter).
    // Within the grammar it is not, even where its bytes would be text, unless the grammar says so
    // (GBNF's %special), since who shows the text may leave it out.
    bool special = false;
  };

  // `ends`: the tokens that end a text.
  Vocabulary(std::vector<Token> tokens, std::vector<int32_t> ends);

  int size() const { return static_cast<int>(tokens_.size()); }
  // 32-bit words of a mask: bit id % 32 of word id / 32.
  size_t words() const { return (tokens_.size() + 31) / 32; }
  const std::string& bytes(int32_t id) const { return tokens_[static_cast<size_t>(id)].bytes; }
  std::span<const int32_t> ends() const { return ends_; }
  bool IsEnd(int32_t id) const;
  bool IsSpecial(int32_t id) const { return tokens_[static_cast<size_t>(id)].special; }
  // Special tokens that do not end the text.
  std::span<const int32_t> specials() const { return specials_; }

  // Tokens in the order of their bytes; a node stands before everything below it.
  struct TrieNode {
    uint32_t end;  // the first node that is not below this one
    // The tokens that end here: a span of Trie::ids. Those of all below follow it.
    uint32_t first_id, ids;
    uint16_t depth;  // bytes up to and with this one, from 1
    uint8_t byte;
  };
  struct Trie {
    std::vector<TrieNode> nodes;
    std::vector<int32_t> ids;
    // For each node: which bytes stand below it, as a number of `byte_sets`; kFew where there are
    // so few nodes that a walk is as fast.
    std::vector<uint32_t> bytes_below;
    std::vector<std::bitset<256>> byte_sets;
    static constexpr uint32_t kFew = ~0u;
    // Calls enter(i, node) for the nodes [from, end) in order, without those below a node for which
    // it is false.
    template <typename F>
    void Walk(uint32_t from, uint32_t end, F enter) const {
      const TrieNode* const all = nodes.data();
      for (uint32_t i = from; i < end;) i = enter(i, all[i]) ? i + 1 : all[i].end;
    }
    uint32_t size() const { return static_cast<uint32_t>(nodes.size()); }
    // All tokens that end at the node or below.
    std::span<const int32_t> IdsFrom(uint32_t node) const {
      const uint32_t end = nodes[node].end;
      const size_t last = end < nodes.size() ? nodes[end].first_id : ids.size();
      return std::span(ids).subspan(nodes[node].first_id, last - nodes[node].first_id);
    }
    // For a slice: all its tokens are made of whole characters that stand for themselves within a
    // JSON string, at most this many of them; 0: any other tokens.
    uint32_t characters = 0;
    std::vector<uint32_t> mask;  // all tokens of the trie
    // For a slice: the tokens with at most so many characters, for each number that some token has.
    struct Shorter {
      uint32_t characters;
      std::vector<uint32_t> mask;
    };
    std::vector<Shorter> shorter;
    // Null where the slice has none.
    const std::vector<uint32_t>* UpTo(uint32_t most) const;
  };
  // Each token that is not special is in one of them.
  std::span<const Trie> tries() const { return tries_; }
  size_t longest() const { return longest_; }  // bytes of the longest token

 private:
  std::vector<Token> tokens_;
  std::vector<int32_t> ends_;
  std::vector<int32_t> specials_;
  std::vector<Trie> tries_;
  size_t longest_ = 0;
};

}  // namespace loopspec::grammar

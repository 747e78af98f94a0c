// Which tokens may come next. For each language that a thread can be reading, the tokens that stay
// within it are found once, whatever the stack; tokens that leave it go on through the automaton.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/threads.h"
#include "grammar/vocabulary.h"

namespace loopspec::grammar {

class MaskMaker {
 public:
  MaskMaker(Automaton& automaton, const Vocabulary& vocabulary);

  Mask Make(StateId state);
  // Bytes of the masks that are kept.
  size_t memory() const { return kept_; }

 private:
  // A place in a trie where a thread may stop within a token.
  struct Exit {
    uint32_t node;
    uint32_t b;  // of the Reading
  };
  struct Narrow {
    uint32_t node;
    // Whether nothing can follow in what the thread reads, and before it there were many texts.
    bool ends;
  };
  // What one thread does with the tokens.
  struct ReadingMask {
    std::vector<uint32_t> within;  // tokens that stay in what the thread reads
    std::vector<Exit> exits;
    // Places where tokens end that leave few texts to follow, found when first needed.
    std::vector<Narrow> narrow;
    bool has_narrow = false;
  };

  ReadingMask& MaskOf(uint32_t trie, const Reading& reading);
  // How many characters of a slice's tokens a thread takes whatever they are.
  struct Plain {
    uint32_t most = 0;
    bool exact = false;  // none of the tokens with more characters is taken
  };
  Plain PlainCharacters(Node node);
  Plain CountedPlain(Node node);
  // Whether all plain characters may follow, and after them all again, without an end. May say no
  // where finding out takes long.
  bool TakesAnyPlain(Node node);
  // Whether no plain character may follow.
  bool TakesNoPlain(Node node);
  // A counted node with the same meaning for tokens that read at most `run` of its items: counts
  // above that are not told apart. `slice`: for tokens of plain characters.
  Node Clamped(Node node, uint32_t run, bool slice = false);
  // The most bytes at the start of a token of the trie that are `item` repeated.
  uint32_t LongestRun(uint32_t trie, Node item);
  void Walk(uint32_t trie, const Reading& reading, ReadingMask& mask);
  // A thread that reads a key, of which objects have many: straight into the words.
  void AddKeys(const Automaton::Thread& thread, std::vector<uint32_t>& words);
  void WalkKeys(uint32_t trie, const Reading& reading, std::vector<uint32_t>& within,
                std::vector<Exit>& exits);
  void WalkRegular(uint32_t trie, Node start, ReadingMask& mask);
  // Whether the node stays as it is after each of the bytes.
  bool StaysAfter(Node node, const std::bitset<256>& bytes);
  void WalkState(uint32_t trie, uint32_t node, StateId state, std::vector<uint32_t>& words);
  // A thread within an array of items that all differ: the same, asking for the items where a token
  // ends one or leaves little choice. `state`: where the thread is.
  void AddUnique(StateId state, const Automaton::Thread& thread, std::vector<uint32_t>& words);
  void FindNarrow(uint32_t trie, const Reading& reading, ReadingMask& mask);
  // `item_is_new`: the item that is being read is, wherever it ends.
  void WalkUnique(uint32_t trie, uint32_t from, StateId after, StateId state, bool item_is_new,
                  std::vector<uint32_t>& words);
  // The bytes from the root to the node.
  std::string_view BytesTo(const Vocabulary::Trie& trie, uint32_t node) const;
  // Whether the bytes up to the node can follow.
  bool MayFollow(const Vocabulary::Trie& trie, uint32_t node, StateId state);
  void Set(const Vocabulary::Trie& trie, const Vocabulary::TrieNode& node,
           std::vector<uint32_t>& words) const;

  Automaton& automaton_;
  const Vocabulary& vocabulary_;
  Node plain_;  // one character that stands for itself in a JSON string

  std::map<std::array<uint32_t, 3>, ReadingMask> readings_;  // by reading and trie
  std::unordered_map<StateId, Mask> masks_;                  // by state with canonical threads
  std::vector<int32_t> specials_;  // special tokens that the grammar itself allows somewhere
  NumberMap canonical_states_;
  NumberMap runs_;
  NumberMap takes_plain_;
  NumberMap takes_any_plain_;
  NumberMap takes_no_plain_;
  int gave_up_ = 0;  // searches of TakesAnyPlain that took too long
  size_t kept_ = 0;  // bytes of masks that are kept

  std::vector<Reading> path_;
  std::vector<Node> nodes_;
  std::vector<StateId> states_;
  std::vector<bool> ended_;  // beside states_, for WalkUnique: whether an item has ended
  // After which bytes a node stays as it is and after which not, as far as they were tried.
  struct Loop {
    std::bitset<256> stays, leaves;
  };
  std::vector<Loop> loops_;
  NumberMap loop_numbers_;  // by node
  std::vector<Exit> exits_;
};

}  // namespace loopspec::grammar

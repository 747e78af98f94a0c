// The automaton with a stack. A state is a set of threads; a thread is what it is reading now (a
// regular language, or the key of an object) and a stack of what comes after. Threads that read the
// same share one thread with several stacks below it, so that ambiguity does not multiply.
// States are made when they are reached and kept once each: equal states have equal numbers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/expressions.h"
#include "grammar/intern.h"
#include "grammar/regular.h"
#include "grammar/unique_items.h"

namespace loopspec::grammar {

// Rules and the languages that they are made of.
struct Rules {
  Regular regular;
  Expressions expressions;
  Expression start = kNoText;
  // Tables that read the text before the grammar starts: reading one of them is being free, so that
  // every special token may come.
  std::vector<Node> free;
  // A table where a special token with these bytes may come too.
  struct Special {
    Node table;
    std::string bytes;
  };
  std::vector<Special> specials;
};

// What a thread reads now. b = 0: the language of the node a. Else: the key of the object whose
// members are the expression a, at node b - 1 of its trie of keys.
struct Reading {
  uint32_t a, b;
  bool operator==(const Reading&) const = default;
};

using StateId = uint32_t;
inline constexpr StateId kDead = 0;

class Automaton {
 public:
  struct Thread {
    uint32_t a, b;   // a Reading
    uint32_t stack;  // a set of frames
  };

  explicit Automaton(const Rules& rules);

  StateId start() const { return start_; }
  StateId Next(StateId state, uint8_t byte);
  // After a special token with these bytes; kDead where it may not come.
  StateId NextSpecial(StateId state, std::string_view bytes);
  // Whether some state allows a special token with these bytes, apart from the free text.
  bool KnowsSpecial(std::string_view bytes) const;
  bool MayEnd(StateId state) const { return may_end_[state]; }
  std::span<const Thread> Threads(StateId state) const {
    const auto list = states_[state];
    return list.first(list.size() - 1);
  }
  // A state with these threads, which must be sorted.
  StateId Intern(std::span<const Thread> threads, bool may_end,
                 UniqueItems::Track track = UniqueItems::kNone);
  // Before the grammar starts.
  bool IsFree(StateId state) const;

  // One thread for itself: what it reads after a byte (a = kNothing: nothing), whether it may stop
  // there and whether it may go on.
  Reading Step(const Reading& reading, uint8_t byte);
  bool MayStop(const Reading& reading) const;
  bool MayGoOn(const Reading& reading);
  // The state when a thread has stopped reading. Where the thread is within an array of items that
  // all differ, the state is one of those that do not know them: see kAnyItems.
  StateId After(const Thread& thread);

  // Arrays of items that all differ. The state of a text within one has a track of the items. A
  // state with the track kAnyItems stands for all of them: it takes any item, and kAskedItems says
  // that it took one that the track would have to be asked about.
  static constexpr UniqueItems::Track kAnyItems = ~0u;
  static constexpr UniqueItems::Track kAskedItems = ~0u - 1;
  UniqueItems::Track TrackOf(StateId state) const { return states_[state].back().b; }
  // Whether it has a track of its own.
  bool KnowsItems(StateId state) const {
    const UniqueItems::Track track = TrackOf(state);
    return track != UniqueItems::kNone && track != kAnyItems && track != kAskedItems;
  }
  UniqueItems& unique_items() { return unique_items_; }
  // Whether what comes after a thread is within such an array.
  bool IsWithinUnique(uint32_t stack) const { return (stack_marks_[stack] & kMarked) != 0; }
  // Whether an item of such an array has just been read, whatever way the stack is taken.
  bool EndsUniqueItem(uint32_t stack) const;
  // Whether enough different texts can follow that one of them makes an item unlike those before.
  bool StackIsOpenEnded(uint32_t stack) const { return (stack_marks_[stack] & kOpenEnded) != 0; }
  bool IsOpenEnded(const Reading& reading);
  bool StateIsOpenEnded(StateId state);
  // Whether some text leads on after a thread that ends an item, if the item is new: where this
  // says no there may be one all the same. `longest`: bytes of the item that are still to come.
  bool LeadsOnAfterNewItem(const Thread& thread, UniqueItems::Track track, size_t longest);
  // Whether the item that is being read, within a string, is new however it ends, and then some
  // text leads on, for tokens of at most `longest` bytes: see UniqueItems::IsNewForSure.
  bool ItemIsNewForSure(uint32_t stack, UniqueItems::Track track, size_t longest);
  // Throws Error for an array that must have more different items than there may be.
  void RefuseFewItems();

  Regular& regular() { return rules_.regular; }
  size_t memory() const;
  // Throws Error when the automaton takes more than this.
  void set_memory_limit(size_t bytes);

 private:
  struct Frame {
    Expression expression;
    uint32_t stack;
  };
  struct Work {
    Expression expression;
    uint32_t stack;
  };

  // What is known of a stack, for arrays of items that all differ.
  static constexpr uint8_t kMarked = 1;     // some way to take it leads through such an array
  static constexpr uint8_t kOpenEnded = 2;  // some way to take it leads to as many texts as needed

  uint32_t Push(Expression expression, uint32_t stack);
  uint32_t InternStack(std::span<const uint32_t> frames);
  uint8_t MarksOf(const Frame& frame);
  bool IsOpenEndedNode(Node node);
  bool LeadsToLoop(Node node);
  bool IsOpenEndedExpression(Expression expression, int depth = 0);
  bool ItemIsNew();
  // Whether some text leads on after the item that is read above this stack, if it is new.
  bool ItemEndIsOpenEnded(uint32_t stack);
  // The state after a byte, even if no text leads on from there.
  StateId NextUnchecked(StateId state, uint8_t byte);
  // Whether some text leads on from a state with a track.
  bool LeadsOn(StateId state);
  void ExpandUnique(const Expressions::Entry& entry, uint32_t stack);
  // Adds the threads of `work_`, and whatever they lead to without reading a byte, to `threads_`.
  void Expand();
  void ExpandMembers(Expression members, uint32_t stack);
  void AddThread(const Reading& reading, uint32_t stack);
  void Stop(const Reading& reading, uint32_t stack);
  StateId Collect();
  bool KeyMayFollow(const Reading& reading) const;
  bool TakesSpecial(const Thread& thread, std::string_view bytes) const;
  void Reset();
  const std::vector<Thread>& CopyOfThreads(StateId state);

  Rules rules_;
  ListTable<Frame> frames_;
  ListTable<uint32_t> stacks_;  // sets of frames, ascending; frame 0 is the end of the text
  // With a last thread: the track of items (b) and whether the text may end (stack).
  ListTable<Thread> states_;
  UniqueItems unique_items_;
  std::vector<uint8_t> stack_marks_;
  NumberMap open_ended_;           // nodes, and (with the highest bit set) expressions
  NumberMap item_ends_;            // stacks, for ItemEndIsOpenEnded
  std::vector<uint8_t> leads_on_;  // states: 0 not known yet, 1 no, 2 yes
  std::vector<bool> may_end_;
  NumberMap next_;   // state and byte to state
  NumberMap after_;  // stack to state: what comes when a regular language ends
  StateId start_ = kDead;
  size_t memory_limit_ = size_t{256} << 20;

  // Used while a state is made.
  std::vector<Work> work_;
  std::vector<Thread> threads_;
  std::vector<Thread> copy_;
  NumberMap expanded_;
  bool ended_ = false;
  UniqueItems::Track track_ = UniqueItems::kNone;
  bool asked_ = false;  // whether an item was taken that kAnyItems does not know
};

}  // namespace loopspec::grammar

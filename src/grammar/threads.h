// The automaton with a stack. A state is a set of threads; a thread is what it is reading now (a
// regular language, or the key of an object) and a stack of what comes after. Threads that read the
// same share one thread with several stacks below it, so that ambiguity does not multiply.
// States are made when they are reached and kept once each: equal states have equal numbers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grammar/expressions.h"
#include "grammar/intern.h"
#include "grammar/regular.h"

namespace loopspec::grammar {

// Rules and the languages that they are made of.
struct Rules {
  Regular regular;
  Expressions expressions;
  Expression start = kNoText;
  // The text before the grammar starts, up to and with its mark: reading it is being free.
  // kNothing: the grammar starts at once.
  Node before = kNothing;
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
  bool MayEnd(StateId state) const { return may_end_[state]; }
  std::span<const Thread> Threads(StateId state) const {
    const auto list = states_[state];
    return may_end_[state] ? list.first(list.size() - 1) : list;
  }
  // A state with these threads, which must be sorted.
  StateId Intern(std::span<const Thread> threads, bool may_end);
  // Before the grammar starts.
  bool IsFree(StateId state) const;

  // One thread for itself: what it reads after a byte (a = kNothing: nothing), whether it may stop
  // there and whether it may go on.
  Reading Step(const Reading& reading, uint8_t byte);
  bool MayStop(const Reading& reading) const;
  bool MayGoOn(const Reading& reading) const;
  // The state when a thread has stopped reading.
  StateId After(const Thread& thread);

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

  uint32_t Push(Expression expression, uint32_t stack);
  // Adds the threads of `work_`, and whatever they lead to without reading a byte, to `threads_`.
  void Expand();
  void ExpandMembers(Expression members, uint32_t stack);
  void AddThread(const Reading& reading, uint32_t stack);
  void Stop(const Reading& reading, uint32_t stack);
  StateId Collect();
  bool KeyMayFollow(const Reading& reading) const;
  void Reset();
  const std::vector<Thread>& CopyOfThreads(StateId state);

  Rules rules_;
  ListTable<Frame> frames_;
  ListTable<uint32_t> stacks_;  // sets of frames, ascending; frame 0 is the end of the text
  ListTable<Thread> states_;    // with a last thread that says whether the text may end
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
};

}  // namespace loopspec::grammar

// Which branches advance in the next step.
//
// A row's result depends on that row alone, so any choice gives the same text; a good one gives it
// sooner. Two questions, both answered by pure functions of counts and costs:
//
// Rows. Every token on the committed path takes R recurrences of one row each. A row is one of them
// with probability `reach`, else it was for nothing. So the rows of a step are those, likeliest
// first, that give the most useful recurrences per second. With many sequences every one has a row
// that is certainly useful, speculative ones compare badly, and speculation fades by itself.
//
// Where rows of a depth share its keys (a GPU), a group that passes together is cheap per row, and
// by that measure the drafting front beside it, which reads planes of its own, would be left out:
// but then nothing is drafted while the group passes. There a row counts as if it saved a step of
// its own, and is taken while reach times that is more than what it adds. (Measured at 4,096 tokens
// of context of Ouro-1.4B: 2.05x over autoregressive decoding against 1.86x. On a CPU the first
// rule is 4 % faster.)
//
// Groups. Rows of one sequence at the same depth read the keys and values of that depth once. Let
// branches wait at the first proposal depth until `group` generations stand there, then pass the
// remaining depths together: fewer bytes for some delay. 1 is the paper's schedule; longer contexts
// want larger groups.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "decode/step_cost.h"

namespace loopspec {

// Generations that may pass together at most.
inline constexpr int kMaxGroup = 16;

// A branch that could advance.
struct RowState {
  int32_t sequence;     // requests that share the step are numbered from 0, in any order
  int32_t depth;        // recurrences done
  int64_t context;      // committed positions of its sequence
  double reach;         // probability to be on the committed path; no more than the parent's
  bool held;            // waits for its group: never chosen
  bool always = false;  // advances in every step that the limit lets it into, whatever it costs
};

// What was chosen from is kept between steps, so that choosing allocates nothing.
class RowChooser {
 public:
  // `recurrence`: R. `readouts`: of a token on its way to R, the last one included. `most`: rows
  // that can be in a step.
  RowChooser(int recurrence, int readouts, int most);
  void set_readouts(int readouts) { readouts_ = readouts; }

  // Sets advance[i] for the rows that advance, at most `limit` of them. Every sequence that has a
  // row which is not held gets one, as long as the limit allows.
  void Choose(std::span<const RowState> rows, int limit, const StepCost& cost,
              std::vector<char>& advance);

 private:
  bool ReadsNewPlane(const RowState& row);

  int recurrence_;
  int readouts_;
  std::vector<int32_t> order_;
  std::vector<int32_t> best_;      // by sequence: its likeliest row, -1: all are held
  std::vector<char> planes_read_;  // by sequence and depth
};

// How a request behaves, for the choice of its group size.
struct GroupQuestion {
  int recurrence = 1;     // R
  int first_depth = 1;    // d1
  int second_depth = 0;   // d2, 0: none
  double first = 0.9;     // share of tokens from the first draft ...
  double second = 0.075;  // ... from the second; the rest restart
  int64_t context = 0;    // committed positions
  int most = 1;           // largest group to consider
};

// Seconds per committed token when `group` generations pass together, as far as groups change it.
double SecondsPerToken(const GroupQuestion& question, int group, const StepCost& cost);
// The group with the fewest.
int BestGroup(const GroupQuestion& question, const StepCost& cost);

}  // namespace loopspec

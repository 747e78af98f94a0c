// Which of one request's branches run: their reach, who waits for a group, who gets a row. Keeps
// what verification has shown so far; the decisions themselves are pure functions (row_choice.h).
#pragma once

#include <span>
#include <vector>

#include "decode/acceptance.h"
#include "decode/branch_tree.h"
#include "decode/request.h"
#include "decode/row_choice.h"
#include "decode/step_cost.h"

namespace loopspec {

class BranchChoice {
 public:
  BranchChoice(const ResolvedRequest& request, int recurrence, int capacity, const StepCost& cost);

  // ---- What verification and drafting show ----
  void ObserveVerdict(const Branch& verified, int accepted);
  void ObserveGuess(int match, bool right);

  // Probability that the successor of `parent` is its draft number `draft`, or a guess.
  double DraftRate(const Branch& parent, int draft) const;
  // Share of tokens that came from a proposal, lately.
  double Share(int proposal) const { return rates_.Share(proposal); }
  double GuessRate(int match) const { return guesses_.Of(match); }
  // Works out the reach of every branch anew.
  void UpdateReach(BranchTree& tree) const;
  // The leaf with the smallest reach below `reach`, to be evicted; kNoBranch when there is none.
  int32_t Dispensable(const BranchTree& tree, double reach) const;

  // ---- The next step ----
  // Appends a row for every live branch in the tree's order, those that wait for their group held.
  void List(const BranchTree& tree, int32_t sequence, std::vector<RowState>& rows);
  // Marks the chosen branches as advancing; one that would pass its parent stays.
  void Mark(BranchTree& tree, std::span<const char> advance);
  // The choice for a request that has the step to itself. `drafting`: branches are read out at
  // proposal depths.
  void ChooseAlone(BranchTree& tree, bool drafting = true);

  // After a branch was given up: where nothing else advances any more, the root goes on.
  void EndWait(BranchTree& tree);

  int group() const { return group_; }
  // Recurrences after which the root goes on, which waits for a draft's readout; 0: it does not.
  int root_waits() const { return root_waits_; }

 private:
  int Passed(const Branch& branch) const;         // proposal depths behind it
  int64_t Context(const BranchTree& tree) const;  // committed positions
  void ChooseGroup(const BranchTree& tree);
  bool GroupIsReady(const BranchTree& tree) const;
  int DelayOfLastReadout(const BranchTree& tree) const;

  const std::vector<int> depths_;
  const int recurrence_;
  const int budget_;       // rows of a step
  const int fixed_group_;  // 0: by cost
  const bool adapt_;
  const bool every_branch_;
  const StepCost& cost_;
  AcceptanceRates rates_;
  GuessRates guesses_;
  RowChooser chooser_;
  int group_ = 1;
  int root_waits_ = 0;
  std::vector<RowState> rows_;
  std::vector<char> advance_;
};

}  // namespace loopspec

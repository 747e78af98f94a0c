// What a decoder tells about itself: counts for a text's statistics, and the timeline of its
// branches (Figure 1 of the paper). It watches, and decides nothing.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "decode/branch_tree.h"
#include "loopspec/token.h"
#include "loopspec/trace.h"

namespace loopspec {

class DecodeObserver {
 public:
  // `trace`: the timeline is kept.
  explicit DecodeObserver(bool trace) : tracing_(trace) {}

  // A decoder of `proposals` proposal depths and `recurrence` recurrences begins, with this tree.
  void Begin(const BranchTree& tree, int proposals, int recurrence);

  // ---- Branches ----
  void Spawned(const Branch& branch, int proposal) {
    Trace(TraceEvent::Kind::kSpawn, branch, branch.token, branch.position, proposal);
  }
  void Advanced(const Branch& branch, int recurrences) {
    Trace(TraceEvent::Kind::kAdvance, branch, branch.token, branch.position, recurrences);
  }
  void Pruned(const Branch& branch) {
    Trace(TraceEvent::Kind::kPrune, branch, branch.token, branch.position, 0);
  }
  // A branch was read out at a proposal depth, before its draft is put on record.
  void ReadOut(const Branch& branch, int proposal, const Decision& decision);
  // A branch was verified: `token` follows it, from proposal `source` or from none (0).
  void Verified(const Branch& branch, int32_t token, int source, bool early);

  // ---- Guesses ----
  void Guessed() { ++statistics_.guesses; }
  // The draft was the guess, or, without drafts, the verdict was.
  void Adopted(const Branch& branch, int32_t token, int proposal) {
    GuessHeld();
    Trace(TraceEvent::Kind::kAdopt, branch, token, branch.position + 1, proposal + 1);
  }
  void GuessHeld() { ++statistics_.guesses_adopted; }

  // A step was planned: the decoder's rows, the first of which is the step's row `first_row`, and
  // their readouts.
  void Planned(std::span<const RowPlan> rows, int32_t first_row,
               std::span<const ReadoutPlan> readouts, int recurrences);

  // The text has ended, and its owner has filled in tokens and times: what follows from all of it.
  void Summarise(std::span<const int> depths, int recurrence);

  // The decoder's counts; all else in it is its owner's to fill in.
  Statistics& statistics() { return statistics_; }
  const Statistics& statistics() const { return statistics_; }
  const std::vector<TraceEvent>& trace() const { return trace_; }
  // What is new on the timeline since the last call.
  std::vector<TraceEvent> TakeTrace() { return std::exchange(trace_, {}); }

 private:
  void Trace(TraceEvent::Kind kind, const Branch& branch, int32_t token, int32_t position,
             int proposal) {
    if (tracing_) Record(kind, branch, token, position, proposal);
  }
  void Record(TraceEvent::Kind kind, const Branch& branch, int32_t token, int32_t position,
              int proposal);

  const bool tracing_;
  const BranchTree* tree_ = nullptr;
  Statistics statistics_;
  std::vector<TraceEvent> trace_;
  std::vector<char> depth_seen_;  // scratch of R entries
};

}  // namespace loopspec

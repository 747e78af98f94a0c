// LoopSpec: pipelined self-speculative decoding of one request (the paper's algorithm), over the
// seam.
//
// A decoder is steppable. It names its rows for the next step (Plan) and absorbs the decisions that
// come back (Absorb); who drives it, alone or among many, it does not know. Which branches advance
// in a step is chosen by cost (branch_choice.h) and changes no token. With no proposal depths it is
// autoregressive decoding, and with early children on top, prompt-lookup decoding.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "base/check.h"
#include "decode/branch_choice.h"
#include "decode/branch_grammar.h"
#include "decode/branch_tree.h"
#include "decode/load_choice.h"
#include "decode/ngram_index.h"
#include "decode/observer.h"
#include "decode/prefix_counts.h"
#include "decode/request.h"
#include "decode/step_cost.h"
#include "kv/ledger.h"

namespace loopspec {

class LoopSpec {
 public:
  // One choice of a request that has been checked (CheckRequest), with pages that the caller takes
  // care of: see positions(). `backend`: as granted; `cost`: of its steps, kept by reference;
  // `observer`: is told what happens; null: the decoder's own.
  LoopSpec(std::shared_ptr<const ResolvedRequest> request, int choice, const ModelSpec& spec,
           const BackendOptions& backend, KvLedger& ledger, SequencePages pages,
           std::shared_ptr<DecodeObserver> observer, const StepCost& cost = kRowsAreFree);
  // The first choice by itself, with pages for the longest text that it may become. Throws Error
  // when the request is bad or does not fit into the key/value memory.
  LoopSpec(ResolvedRequest request, const ModelSpec& spec, const BackendOptions& backend,
           KvLedger& ledger, const StepCost& cost = kRowsAreFree);
  ~LoopSpec();

  // What must be prefilled before the first step: the prompt without its last token, which is the
  // first branch.
  PrefillPlan Prefill() const;

  bool finished() const { return reason_ != FinishReason::kNone; }
  FinishReason finish_reason() const { return reason_; }
  // What went wrong, in one sentence, when the reason is kError.
  const std::string& error() const { return error_; }
  // Ends decoding from outside, after a stop string or a cancelled request. `error`: with kError.
  void Stop(FinishReason reason, const std::string& error = {});

  // ---- One step ----
  // Which branches advance has been chosen for a decoder that has the step to itself. Where several
  // share one, their driver lists all their rows, chooses, and says so here: ListRows
  // appends one row for each branch, Choose takes the choice over them.
  void ListRows(int32_t sequence, std::vector<RowState>& rows);
  void Choose(std::span<const char> advance);
  // Recurrences until a branch that advances must be read out or would pass its parent.
  int RecurrencesToReadout() const;
  // Adds this decoder's rows, commits and readouts of a step of `recurrences` <=
  // RecurrencesToReadout().
  void Plan(int recurrences, StepPlan& plan);
  // The decisions of the readouts that Plan added, in order.
  void Absorb(std::span<const Decision> decisions);
  // Commits that are still due after the last token, for a sequence that is kept.
  void PlanCommits(StepPlan& plan);

  // Gives up a branch and its descendants, but not the root: their drafts stay on record.
  void Evict(int32_t branch);

  // From now on there are at most `most` branches; the least likely ones go first.
  void LimitBranches(int most);

  // ---- Drafts ----
  // Whether the text is the same without drafts, as it is unless they are what it is drawn from.
  bool drafts_are_optional() const {
    return !request_->depths.empty() && !request_->sampling.needs_distributions();
  }
  // Whether branches are read out at proposal depths from now on: see load_choice.h.
  void set_drafting(bool drafting) {
    LOOPSPEC_CHECK(pending_.empty() && (drafting || drafts_are_optional()));
    drafting_ = drafting;
  }
  // Decided positions before the first one that passed a proposal depth without a readout: these
  // have keys and values of the coda at every depth of the request, later ones perhaps not.
  int64_t drafted() const { return std::min(decided(), undrafted_from_); }
  // What it asks of the steps that it shares, its drafts as good as they have been so far.
  RequestLoad load() const {
    const size_t drafts = depths().size();
    return {depths(), drafts > 0 ? choice_.Share(0) : 0.0, drafts > 1 ? choice_.Share(1) : 0.0,
            decided()};
  }

  // ---- Pages ----
  SequencePages& pages() { return pages_; }
  // Positions that must have a page before Plan, so that whatever the step verifies can be
  // committed.
  int64_t positions() const;
  // Positions that are decided: all before the root's own, which has no page yet.
  int64_t decided() const;
  // Whether the keys and values of some of these still wait for the next Plan or PlanCommits to put
  // them into pages.
  bool commits_due() const { return !commits_.empty(); }

  // Gives up every branch, to go on later from the decided text: draws are keyed by position and a
  // row's result depends on that row alone, so the same tokens follow. No commit may be due.
  void Suspend();
  // Takes a cell for the root again; false when there is none. The pages are as they were.
  bool Resume();

  // The decided tokens, without text and time.
  const std::vector<Token>& output() const { return output_; }
  const Statistics& statistics() const { return observer_->statistics(); }
  const std::vector<TraceEvent>& trace() const { return observer_->trace(); }
  std::span<const int> depths() const { return request_->depths; }
  const BranchTree& tree() const { return tree_; }
  int group() const { return choice_.group(); }

 private:
  static const StepCost kRowsAreFree;

  // The algorithm.
  bool SpawnRoot();
  int32_t Spawn(int32_t parent, int32_t token, int32_t position, int proposal);
  void Draft(int32_t b, int proposal, const Decision& decision);
  void Verify(const Decision& verdict);
  void Reroot(int32_t root);
  void SpawnChildren();
  int PlaceOf(int32_t b) const;  // in the tree's list of active branches
  bool MayHaveChild(int32_t token, int32_t position) const;
  bool IsStop(int32_t token) const;

  // Early children.
  void StartGuesses();
  bool IsGuess(int32_t b) const;  // begun on a guess that no draft has confirmed yet
  Guess GuessAfter(int32_t b);
  void DropWrongGuesses();

  void Commit(const Decision& verdict, int source, bool early);
  void PlanReadout(int32_t b, int row, StepPlan& plan);
  int NextReadout(int depth) const;
  bool PassesDraft(int depth, int recurrences) const;  // a proposal depth, without reading it out
  void DropCommits();
  bool AllFinite(std::span<const Decision> decisions);
  DrawKey DrawAfter(const Branch& branch) const;  // of the token after the branch's own

  const std::shared_ptr<const ResolvedRequest> request_;
  const uint32_t request_choice_;          // which of its choices this is
  const int recurrence_;                   // R
  const std::vector<int> readout_depths_;  // the backend's
  const int longest_chain_;                // positions from the root to a branch
  KvLedger& ledger_;
  SequencePages pages_;
  BranchTree tree_;
  const std::shared_ptr<DecodeObserver> observer_;
  BranchChoice choice_;
  PrefixCounts counts_;
  BranchGrammar grammar_;
  NgramIndex ngrams_;

  // Between Plan and Absorb: the readouts in flight. A branch is named by its number too, since a
  // branch that begins after a fallback can take the place of one whose verdict is in the same
  // step.
  struct Pending {
    int32_t branch;
    int32_t number;
    int32_t proposal;  // -1: verification
  };
  std::vector<Pending> pending_;
  // Between Absorb and Plan: commits to come. Their cells are out of the tree's hands, but nobody
  // else's before the step that reads them is planned.
  std::vector<CommitPlan> commits_;
  std::vector<int32_t> held_cells_;
  bool drafting_ = true;
  int64_t undrafted_from_ = INT64_MAX;  // the first position decided without one of its drafts

  FinishReason reason_ = FinishReason::kNone;
  std::string error_;
  std::vector<Token> output_;
};

}  // namespace loopspec

// The next step of a request, as the backend takes it: which cells advance, and what is read out.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "decode/loopspec.h"

namespace loopspec {

// ---- foreach b in A_cur in parallel: H_b <- B(H_b); r_b <- r_b + 1 ----
// As many recurrences at once as lead nobody past a depth at which it is read out, nor past the
// point where a root that waits for a draft's readout goes on.

void LoopSpec::ListRows(int32_t sequence, std::vector<RowState>& rows) {
  choice_.List(tree_, sequence, rows);
}

void LoopSpec::Choose(std::span<const char> advance) {
  choice_.Mark(tree_, advance);
}

int LoopSpec::NextReadout(int depth) const {
  if (!drafting_) return recurrence_;
  const auto next = std::upper_bound(request_->depths.begin(), request_->depths.end(), depth);
  return next == request_->depths.end() ? recurrence_ : *next;
}

bool LoopSpec::PassesDraft(int depth, int recurrences) const {
  if (drafting_) return false;
  const auto next = std::upper_bound(request_->depths.begin(), request_->depths.end(), depth);
  return next != request_->depths.end() && *next <= depth + recurrences;
}

int LoopSpec::RecurrencesToReadout() const {
  int steps = choice_.root_waits() > 0 ? choice_.root_waits() : recurrence_;
  for (const int32_t b : tree_.active()) {
    const Branch& branch = tree_[b];
    if (!branch.advancing) continue;
    steps = std::min(steps, NextReadout(branch.depth) - branch.depth);
    if (branch.parent != kNoBranch && !tree_[branch.parent].advancing)
      steps = std::min(steps, tree_[branch.parent].depth - branch.depth);
  }
  return steps;
}

void LoopSpec::Plan(int recurrences, StepPlan& plan) {
  LOOPSPEC_CHECK(!finished() && pending_.empty() && request_->max_tokens > 0);
  PlanCommits(plan);
  const auto sequence = static_cast<int32_t>(plan.sequences.size()) - 1;
  const size_t first_row = plan.rows.size(), first_readout = plan.readouts.size();
  counts_.Release();
  for (const int32_t b : tree_.active()) {
    Branch& branch = tree_[b];
    if (!branch.advancing) continue;
    // The chain of uncommitted ancestors, from the root down to the parent.
    const auto chain_begin = static_cast<int32_t>(plan.chains.size());
    for (int32_t a = branch.parent; a != kNoBranch; a = tree_[a].parent)
      plan.chains.push_back(tree_[a].cell);
    std::reverse(plan.chains.begin() + chain_begin, plan.chains.end());
    const auto chain_length = static_cast<int32_t>(plan.chains.size()) - chain_begin;
    const auto row = static_cast<int32_t>(plan.rows.size());
    plan.rows.push_back({sequence, branch.cell, branch.token, branch.position, branch.depth,
                         chain_begin, chain_length});
    branch.undrafted = branch.undrafted || PassesDraft(branch.depth, recurrences);
    branch.depth += recurrences;
    observer_->Advanced(branch, recurrences);
    if (branch.depth == NextReadout(branch.depth - 1)) PlanReadout(b, row, plan);
  }
  observer_->Planned(std::span(plan.rows).subspan(first_row), static_cast<int32_t>(first_row),
                     std::span(plan.readouts).subspan(first_readout), recurrences);
}

void LoopSpec::PlanCommits(StepPlan& plan) {
  const auto sequence = static_cast<int32_t>(plan.sequences.size());
  plan.sequences.push_back(PlanOf(pages_, recurrence_));
  for (CommitPlan commit : commits_) {
    commit.sequence = sequence;
    plan.commits.push_back(commit);
  }
  // A step commits before any of its rows advance, so from here on its rows may take these cells.
  DropCommits();
}

void LoopSpec::DropCommits() {
  for (const int32_t cell : held_cells_) ledger_.cells().Give(cell);
  held_cells_.clear();
  commits_.clear();
}

// ---- C(H_b) at a proposal depth or at R ----
void LoopSpec::PlanReadout(int32_t b, int row, StepPlan& plan) {
  const Branch& branch = tree_[b];
  const bool verify = branch.depth == recurrence_;
  const auto proposal = std::find(request_->depths.begin(), request_->depths.end(), branch.depth) -
                        request_->depths.begin();
  const auto readout = std::find(readout_depths_.begin(), readout_depths_.end(), branch.depth) -
                       readout_depths_.begin();
  ReadoutPlan out{};
  out.row = row;
  out.readout = static_cast<int32_t>(readout);
  out.purpose = verify ? ReadoutPurpose::kVerify : ReadoutPurpose::kPropose;
  out.proposal = verify ? -1 : static_cast<int32_t>(proposal);
  out.recorded_count = branch.proposal_count;
  for (int i = 0; i < branch.proposal_count; ++i)
    out.recorded[i] = {branch.proposals[i].index, branch.proposals[i].token};
  out.sampling = &request_->sampling;
  out.draw = DrawAfter(branch);
  const std::span<const TokenCount> counts = counts_.Of(tree_, b);
  out.counts = counts.data();
  out.counts_length = static_cast<int32_t>(counts.size());
  out.mask = grammar_.MaskOf(b);
  out.logprobs = verify ? request_->logprobs.value_or(-1) : -1;
  plan.readouts.push_back(out);
  pending_.push_back({b, branch.number, out.proposal});
}

// Logits that are no numbers decide nothing. They come from a damaged checkpoint, or from values
// too large for the element type.
bool LoopSpec::AllFinite(std::span<const Decision> decisions) {
  for (size_t i = 0; i < decisions.size(); ++i) {
    if (decisions[i].finite) continue;
    const Branch& branch = tree_[pending_[i].branch];
    error_ = fmt::format(
        "the logits at position {}, depth {} hold NaN or infinity: are the weights damaged?",
        branch.position, branch.depth);
    return false;
  }
  return true;
}

DrawKey LoopSpec::DrawAfter(const Branch& branch) const {
  return {request_->seed, request_choice_, static_cast<uint32_t>(branch.position + 1)};
}

}  // namespace loopspec

#include "decode/loopspec.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "decode/assume.h"
#include "decode/depths.h"

namespace loopspec {
namespace {

// Pages for the whole sequence, after checking that it fits the model's context.
int64_t Positions(const DecodeRequest& request, const ModelSpec& spec) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) Fail("the prompt is empty: at least one token is needed");
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= spec.vocab)
      Fail("the prompt has token {}, the vocabulary has {}", token, spec.vocab);
  }
  if (request.max_tokens < 1) Fail("max-tokens is {}, expected 1 or more", request.max_tokens);
  const int64_t positions = prompt + request.max_tokens;
  if (positions > spec.max_positions) {
    Fail(
        "a prompt of {} tokens and {} new ones make {}, the model's context is {} (--set "
        "max_position_embeddings=N overrides it)",
        prompt, request.max_tokens, positions, spec.max_positions);
  }
  return positions;
}

int Budget(const DecodeRequest& request, int backend_rows) {
  if (request.row_budget < 0)
    Fail("max-rows is {}, expected 1 or more, or 0 for no limit", request.row_budget);
  // Without proposals there is never a second branch.
  if (request.depths.empty()) return 1;
  return request.row_budget == 0 ? backend_rows : std::min(request.row_budget, backend_rows);
}

}  // namespace

LoopSpec::LoopSpec(const DecodeRequest& request, const ModelSpec& spec,
                   const BackendOptions& backend, KvLedger& ledger)
    : request_(request),
      recurrence_(spec.recurrence),
      vocab_(spec.vocab),
      readout_depths_(backend.readout_depths),
      budget_(Budget(request, backend.cells)),
      pages_(ledger, Positions(request, spec)),
      tree_(ledger, budget_),
      counts_(request.sampling.needs_counts(), request.prompt, request.max_tokens, spec.vocab,
              budget_) {
  CheckDepths(request_.depths, recurrence_);
  CheckSamplingParams(request_.sampling, spec.vocab);
  for (const int depth : request_.depths) {
    const auto it = std::find(readout_depths_.begin(), readout_depths_.end(), depth);
    LOOPSPEC_CHECK(it != readout_depths_.end());
    readout_of_proposal_.push_back(static_cast<int>(it - readout_depths_.begin()));
  }
  statistics_.accepted.resize(request_.depths.size());
  statistics_.rows_histogram.resize(static_cast<size_t>(budget_) + 1);
  output_.reserve(static_cast<size_t>(request_.max_tokens));
  pending_.reserve(static_cast<size_t>(budget_));
  commits_.reserve(1);
  // The last token of the prompt is the first branch: its successor is decided like any other.
  const auto last = static_cast<int32_t>(request_.prompt.size()) - 1;
  const int32_t root = Spawn(kNoBranch, request_.prompt.back(), last, 0);
  if (root == kNoBranch) Fail("no free cell for another request");
}

PrefillPlan LoopSpec::Prefill() const {
  return {{pages_.pages().data()}, 0, std::span(request_.prompt).first(request_.prompt.size() - 1)};
}

void LoopSpec::Stop(FinishReason reason) {
  if (finished()) return;
  reason_ = reason;
  tree_.Clear();
}

// ---- Spawn: c <- NewBranch(); H_c <- P(X); r_c <- 0; Q_c <- {}; A <- A + c ----
// P itself runs with the next step: a row at depth 0 goes through it first.
int32_t LoopSpec::Spawn(int32_t parent, int32_t token, int32_t position, int proposal) {
  const int32_t c = tree_.Add(parent, token, position);
  if (c != kNoBranch) Trace(TraceEvent::Kind::kSpawn, tree_[c], token, position, proposal);
  return c;
}

// ---- One step: all of A advances; whoever reaches a proposal depth or R is read out ----
int LoopSpec::StepsToReadout() const {
  int steps = recurrence_;
  for (const int32_t b : tree_.active()) {
    const int depth = tree_[b].depth;
    for (const int d : request_.depths) {
      if (d > depth) {
        steps = std::min(steps, d - depth);
        break;
      }
    }
    steps = std::min(steps, recurrence_ - depth);
  }
  return steps;
}

void LoopSpec::Plan(int recurrences, StepPlan& plan) {
  LOOPSPEC_CHECK(!finished() && pending_.empty());
  const auto sequence = static_cast<int32_t>(plan.sequences.size());
  plan.sequences.push_back({pages_.pages().data()});
  for (CommitPlan commit : commits_) {
    commit.sequence = sequence;
    plan.commits.push_back(commit);
  }
  commits_.clear();
  counts_.Release();
  const int64_t preludes_before = statistics_.preludes;
  CountReads(recurrences);
  for (const int32_t b : tree_.active()) {
    Branch& branch = tree_[b];
    // The chain of uncommitted ancestors, from the root down to the parent.
    const auto chain_begin = static_cast<int32_t>(plan.chains.size());
    for (int32_t a = branch.parent; a != kNoBranch; a = tree_[a].parent)
      plan.chains.push_back(tree_[a].cell);
    std::reverse(plan.chains.begin() + chain_begin, plan.chains.end());
    const auto chain_length = static_cast<int32_t>(plan.chains.size()) - chain_begin;
    const auto row = static_cast<int32_t>(plan.rows.size());
    plan.rows.push_back({sequence, branch.cell, branch.token, branch.position, branch.depth,
                         chain_begin, chain_length});
    statistics_.preludes += branch.depth == 0 ? 1 : 0;
    branch.depth += recurrences;  // H_b <- B(H_b); r_b <- r_b + 1
    PlanReadout(b, row, plan);
  }
  statistics_.prelude_steps += statistics_.preludes > preludes_before ? 1 : 0;
  statistics_.readout_steps += pending_.empty() ? 0 : 1;
  statistics_.steps += recurrences;
  statistics_.row_steps += int64_t{recurrences} * tree_.size();
  statistics_.rows_peak = std::max(statistics_.rows_peak, tree_.size());
  statistics_.rows_histogram[static_cast<size_t>(tree_.size())] += recurrences;
}

// Keys and values that the step must read: the committed positions once per depth, each row's
// chain, each row itself.
void LoopSpec::CountReads(int recurrences) {
  const int64_t committed = tree_[tree_.root()].position;
  depth_seen_.assign(static_cast<size_t>(recurrence_), false);
  int64_t positions = 0;
  for (const int32_t b : tree_.active()) {
    const Branch& branch = tree_[b];
    positions += branch.position - committed + 1;
    if (depth_seen_[static_cast<size_t>(branch.depth)]) continue;
    depth_seen_[static_cast<size_t>(branch.depth)] = true;
    positions += committed;
  }
  statistics_.kv_positions += positions * recurrences;
}

void LoopSpec::PlanReadout(int32_t b, int row, StepPlan& plan) {
  const Branch& branch = tree_[b];
  int proposal = -1, readout = -1;
  if (branch.depth == recurrence_) {
    readout = static_cast<int>(readout_depths_.size()) - 1;
  } else {
    const auto it = std::find(request_.depths.begin(), request_.depths.end(), branch.depth);
    if (it == request_.depths.end()) return;
    proposal = static_cast<int>(it - request_.depths.begin());
    readout = readout_of_proposal_[static_cast<size_t>(proposal)];
  }
  ReadoutPlan out{};
  out.row = row;
  out.readout = readout;
  out.purpose = proposal < 0 ? ReadoutPurpose::kVerify : ReadoutPurpose::kPropose;
  out.proposal = proposal;
  out.recorded_count = branch.proposal_count;
  for (int i = 0; i < branch.proposal_count; ++i) {
    out.recorded[i] = {branch.proposals[i].index, branch.proposals[i].token};
  }
  out.sampling = &request_.sampling;
  out.draw = {request_.seed, request_.choice, static_cast<uint32_t>(branch.position + 1)};
  const std::span<const TokenCount> counts = counts_.Of(tree_, b);
  out.counts = counts.data();
  out.counts_length = static_cast<int32_t>(counts.size());
  out.logprobs = proposal < 0 ? request_.logprobs : -1;
  plan.readouts.push_back(out);
  pending_.push_back({b, proposal});
  ++statistics_.readouts;
}

void LoopSpec::Absorb(std::span<const Decision> decisions) {
  LOOPSPEC_CHECK(decisions.size() == pending_.size());
  if (request_.assume != nullptr) decisions = Assume(decisions);
  const Decision* verdict = nullptr;
  for (size_t i = 0; i < pending_.size(); ++i) {
    if (pending_[i].proposal < 0) {
      verdict =
          &decisions[i];  // only the root can be the deepest: every other branch started later
    } else {
      Draft(pending_[i].branch, pending_[i].proposal, decisions[i]);
    }
  }
  pending_.clear();
  if (verdict != nullptr) Verify(*verdict);
  if (!finished()) SpawnChildren();
}

// ---- r_b = d_j: record the proposal, if the gate let one through ----
void LoopSpec::Draft(int32_t b, int proposal, const Decision& decision) {
  Branch& branch = tree_[b];
  if (branch.proposal_count > 0) {
    ++statistics_.gate_evaluated;
    statistics_.gate_opened += decision.gate_open ? 1 : 0;
  }
  if (decision.token < 0) {
    Trace(TraceEvent::Kind::kGateClosed, branch, -1, branch.position + 1, proposal + 1);
    return;
  }
  branch.proposals[branch.proposal_count++] = {proposal, decision.token, kNoBranch};
  Trace(TraceEvent::Kind::kDraft, branch, decision.token, branch.position + 1, proposal + 1);
}

// ---- r_b = R: (x*, c*) <- Verify(b, p_R); Y <- Y || x*; A <- Reroot(A, c*) ----
// The cascade itself has run on the device (sampling/cascade.h); here its verdict takes effect.
void LoopSpec::Verify(const Decision& verdict) {
  Branch& b = tree_[tree_.root()];
  LOOPSPEC_CHECK(b.depth == recurrence_);
  int32_t child = kNoBranch;
  int source = 0;
  if (verdict.accepted >= 0) {
    const Proposal& accepted = b.proposals[verdict.accepted];
    LOOPSPEC_CHECK(accepted.token == verdict.token);
    child = accepted.child;
    source = accepted.index + 1;
  }
  const int32_t position = b.position + 1;
  Trace(source > 0 ? TraceEvent::Kind::kAccept : TraceEvent::Kind::kFallback, b, verdict.token,
        position, source);
  commits_.push_back({b.cell, 0, b.position});
  Commit(verdict.token, source, verdict);
  if (finished()) return tree_.Clear();
  Reroot(child);
  // Neither draft held, or the one that did was left without a branch: start on the verified prefix
  // at depth 0.
  if (child == kNoBranch) Spawn(kNoBranch, verdict.token, position, source);
}

void LoopSpec::Reroot(int32_t root) {
  const int32_t verified = tree_[tree_.root()].number;
  tree_.Reroot(root, [&](const Branch& pruned) {
    if (pruned.number != verified)
      Trace(TraceEvent::Kind::kPrune, pruned, pruned.token, pruned.position, 0);
  });
}

void LoopSpec::Commit(int32_t token, int source, const Decision& decision) {
  output_.push_back({token, source, decision.logprob, decision.top});
  counts_.Commit(token);
  if (source > 0) {
    ++statistics_.accepted[static_cast<size_t>(source) - 1];
  } else {
    ++statistics_.fallback;
  }
  if (IsStop(token)) {
    reason_ = FinishReason::kStop;
  } else if (static_cast<int>(output_.size()) == request_.max_tokens) {
    reason_ = FinishReason::kLength;
  }
}

// ---- Timing simulations only (request.assume) ----
std::span<const Decision> LoopSpec::Assume(std::span<const Decision> decisions) {
  assumed_.assign(decisions.begin(), decisions.end());
  for (size_t i = 0; i < pending_.size(); ++i) {
    const Branch& branch = tree_[pending_[i].branch];
    const DrawKey key{request_.seed, request_.choice, static_cast<uint32_t>(branch.position + 1)};
    AssumeOutcome(*request_.assume, key, pending_[i].proposal,
                  std::span(branch.proposals, static_cast<size_t>(branch.proposal_count)), vocab_,
                  assumed_[i]);
  }
  return assumed_;
}

// ---- Children of recorded drafts, as the budget allows: first proposals first, then by age ----
void LoopSpec::SpawnChildren() {
  for (int proposal = 0; proposal < static_cast<int>(request_.depths.size()); ++proposal) {
    // Children are added behind `existing` and have no drafts yet.
    const int existing = tree_.size();
    for (int i = 0; i < existing && tree_.size() < budget_; ++i) {
      const int32_t b = tree_.active()[static_cast<size_t>(i)];
      for (int j = 0; j < tree_[b].proposal_count; ++j) {
        Proposal& draft = tree_[b].proposals[j];
        if (draft.index != proposal || draft.child != kNoBranch) continue;
        const int32_t position = tree_[b].position + 1;
        if (MayHaveChild(draft.token, position))
          draft.child = Spawn(b, draft.token, position, proposal + 1);
      }
    }
  }
}

// No child for an end-of-sequence draft, nor for one after which no token may follow.
bool LoopSpec::MayHaveChild(int32_t token, int32_t position) const {
  const int64_t index =
      position - static_cast<int64_t>(request_.prompt.size());  // among the decoded tokens
  return index + 1 < request_.max_tokens && !IsStop(token);
}

bool LoopSpec::IsStop(int32_t token) const {
  return std::find(request_.stop_tokens.begin(), request_.stop_tokens.end(), token) !=
         request_.stop_tokens.end();
}

void LoopSpec::Trace(TraceEvent::Kind kind, const Branch& branch, int32_t token, int32_t position,
                     int proposal) {
  if (!request_.trace) return;
  const int32_t parent = branch.parent == kNoBranch ? -1 : tree_[branch.parent].number;
  trace_.push_back(
      {kind, statistics_.steps, branch.number, parent, token, position, branch.depth, proposal});
}

}  // namespace loopspec

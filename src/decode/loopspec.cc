// Algorithm 1 of the paper. Beside each function stand its lines of the pseudocode; what differs is
// that a step advances chosen branches instead of all (A_cur is what `advancing` says), that
// several verdicts may come in one step, and that a child may have begun before its draft was
// drawn.
//
// The rest of the class: loopspec_plan.cc writes a step's rows and readouts down for the backend,
// loopspec_guess.cc begins children before their draft, loopspec_life.cc begins, pauses and ends a
// request.
#include "decode/loopspec.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace loopspec {
namespace {

// Children that are less likely to be needed are not begun, but for the paper's schedule.
constexpr double kLeastReach = 0.002;

}  // namespace

// ---- Spawn: c <- NewBranch(); H_c <- P(X); r_c <- 0; Q_c <- {}; A <- A + c ----
// P itself runs with the next step: a row at depth 0 goes through it first.
int32_t LoopSpec::Spawn(int32_t parent, int32_t token, int32_t position, int proposal) {
  const int32_t c = tree_.Add(parent, token, position);
  if (c == kNoBranch) return c;
  grammar_.Spawn(c, parent, token);
  observer_->Spawned(tree_[c], proposal);
  return c;
}

// ---- foreach b in A_cur: what its depth calls for; then the children of the next step ----
void LoopSpec::Absorb(std::span<const Decision> decisions) {
  LOOPSPEC_CHECK(decisions.size() == pending_.size());
  if (!AllFinite(decisions)) return Stop(FinishReason::kError);
  for (size_t i = 0; i < pending_.size(); ++i) {
    if (pending_[i].proposal >= 0) Draft(pending_[i].branch, pending_[i].proposal, decisions[i]);
  }
  // Verdicts from the root down, as many as are on the committed path: no branch passes its parent,
  // so a branch that was verified below the root was verified in this step.
  for (size_t i = 0; i < pending_.size() && !finished(); ++i) {
    if (pending_[i].proposal < 0 && pending_[i].number == tree_[tree_.root()].number)
      Verify(decisions[i]);
  }
  pending_.clear();
  if (finished()) return;
  DropWrongGuesses();
  choice_.UpdateReach(tree_);
  SpawnChildren();
  StartGuesses();
  choice_.UpdateReach(tree_);
  choice_.ChooseAlone(tree_, drafting_);
}

// ---- r_b = d_j: Q_b[j] <- (x, q_j, c_j), if the gate let a proposal through ----
void LoopSpec::Draft(int32_t b, int proposal, const Decision& decision) {
  Branch& branch = tree_[b];
  observer_->ReadOut(branch, proposal, decision);
  if (decision.token < 0 || grammar_.Stuck(b) != nullptr) return;
  Proposal& draft = branch.proposals[branch.proposal_count++];
  draft = {proposal, decision.token, kNoBranch};
  // A child that began on this token before it was drafted is the draft's child.
  if (branch.guess != kNoBranch && tree_[branch.guess].token == draft.token) {
    draft.child = std::exchange(branch.guess, kNoBranch);
    choice_.ObserveGuess(tree_[draft.child].match, true);
    observer_->Adopted(branch, draft.token, proposal);
  }
}

// ---- r_b = R: (x*, c*) <- Verify(b, p_R); Y <- Y || x*; A <- Reroot(A, c*) ----
// The cascade itself has run on the device (sampling/cascade.h); here its verdict takes effect.
void LoopSpec::Verify(const Decision& verdict) {
  const int32_t root = tree_.root();
  Branch& b = tree_[root];
  LOOPSPEC_CHECK(b.depth == recurrence_);
  if (grammar_.Stuck(root) != nullptr) return Stop(FinishReason::kError, *grammar_.Stuck(root));
  int32_t child = kNoBranch;
  int source = 0;
  if (verdict.accepted >= 0) {
    const Proposal& accepted = b.proposals[verdict.accepted];
    LOOPSPEC_CHECK(accepted.token == verdict.token);
    child = accepted.child;
    source = accepted.index + 1;
  } else if (b.guess != kNoBranch) {  // without drafts a guess meets the verdict itself
    const bool right = tree_[b.guess].token == verdict.token;
    choice_.ObserveGuess(tree_[b.guess].match, right);
    if (right) child = b.guess;
    if (right) observer_->GuessHeld();
  }
  const int32_t position = b.position + 1;
  const bool early = child != kNoBranch && tree_[child].early;
  observer_->Verified(b, verdict.token, source, early);
  choice_.ObserveVerdict(b, source - 1);
  if (b.undrafted) undrafted_from_ = std::min<int64_t>(undrafted_from_, b.position);
  held_cells_.push_back(tree_.ReleaseCell(root));
  commits_.push_back({held_cells_.back(), 0, b.position});
  Commit(verdict, source, early);
  if (finished()) return tree_.Clear();
  Reroot(child);
  if (child != kNoBranch) return;
  // Neither draft held, or the one that did was left without a branch: start on the verified prefix
  // at depth 0. When no cell is free, the one just verified is: the next step commits it first.
  if (Spawn(kNoBranch, verdict.token, position, source) != kNoBranch) return;
  ledger_.cells().Give(held_cells_.back());
  held_cells_.pop_back();
  LOOPSPEC_CHECK(Spawn(kNoBranch, verdict.token, position, source) != kNoBranch);
}

void LoopSpec::Reroot(int32_t root) {
  const int32_t verified = tree_[tree_.root()].number;
  tree_.Reroot(root, [&](const Branch& pruned) {
    if (pruned.number != verified) observer_->Pruned(pruned);
  });
}

// ---- c_j <- Spawn(X || x_j), for drafts that have no branch yet and may be needed ----
void LoopSpec::SpawnChildren() {
  const double least_reach = request_->laboratory.every_branch ? 0 : kLeastReach;
  for (int i = 0; i < tree_.size(); ++i) {
    const int32_t b = tree_.active()[static_cast<size_t>(i)];
    for (int j = 0; j < tree_[b].proposal_count; ++j) {
      const Proposal draft = tree_[b].proposals[j];
      const double reach = tree_[b].reach * choice_.DraftRate(tree_[b], j);
      const int32_t position = tree_[b].position + 1;
      if (draft.child != kNoBranch || reach < least_reach || !MayHaveChild(draft.token, position))
        continue;
      int32_t child = Spawn(b, draft.token, position, draft.index + 1);
      if (child == kNoBranch) {  // the tree or the device is full: somebody less likely may go
        const int32_t least = choice_.Dispensable(tree_, reach);
        if (least == kNoBranch) continue;
        Evict(least);
        i = PlaceOf(b);
        child = Spawn(b, draft.token, position, draft.index + 1);
      }
      tree_[b].proposals[j].child = child;
      if (child != kNoBranch) tree_[child].reach = reach;
    }
  }
}

int LoopSpec::PlaceOf(int32_t b) const {
  const std::span<const int32_t> active = tree_.active();
  return static_cast<int>(std::find(active.begin(), active.end(), b) - active.begin());
}

void LoopSpec::Evict(int32_t branch) {
  LOOPSPEC_CHECK(branch != tree_.root());
  Branch& parent = tree_[tree_[branch].parent];
  if (parent.guess == branch) parent.guess = kNoBranch;
  for (Proposal& draft : std::span(parent.proposals, static_cast<size_t>(parent.proposal_count))) {
    if (draft.child == branch) draft.child = kNoBranch;
  }
  tree_.Prune(branch, [&](const Branch& pruned) { observer_->Pruned(pruned); });
  choice_.EndWait(tree_);
}

// No child for an end-of-sequence draft, nor for one after which no token may follow, nor for one
// so far ahead that keys it reads would not exist yet: its draft stays on record.
bool LoopSpec::MayHaveChild(int32_t token, int32_t position) const {
  const int64_t index =
      position - static_cast<int64_t>(request_->prompt.size());  // among the decoded tokens
  return index + 1 < request_->max_tokens && !IsStop(token) &&
         position - decided() <= longest_chain_;
}

bool LoopSpec::IsStop(int32_t token) const {
  return std::binary_search(request_->stop_tokens.begin(), request_->stop_tokens.end(), token);
}

// ---- Y <- Y || x* ----
void LoopSpec::Commit(const Decision& verdict, int source, bool early) {
  Token& token = output_.emplace_back();
  token.choice = static_cast<int>(request_choice_);
  token.id = verdict.token;
  token.source = source;
  token.early = early;
  if (request_->logprobs) token.logprob = verdict.logprob;
  token.top = verdict.top;
  counts_.Commit(token.id);
  grammar_.Commit(token.id);
  ngrams_.Push(token.id);
  if (IsStop(token.id)) {
    reason_ = FinishReason::kStop;
  } else if (static_cast<int>(output_.size()) == request_->max_tokens) {
    reason_ = FinishReason::kLength;
  }
}

}  // namespace loopspec

// Algorithm 1 of the paper. Beside each function stand its lines of the pseudocode; what differs is
// that a step advances chosen branches instead of all (A_cur is what `advancing` says), that
// several verdicts may come in one step, and that a child may have begun before its draft was
// drawn.
#include "decode/loopspec.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "decode/assume.h"

namespace loopspec {
namespace {

// Branches of one request alive at once, waiting ones included.
constexpr int kMostBranches = 256;
// Children that are less likely to be needed are not begun.
constexpr double kLeastReach = 0.002;
constexpr double kLeastGuessReach = 0.02;
// Tokens that are guessed in a row.
constexpr int kLongestGuess = 8;

DecodeRequest Checked(const DecodeRequest& request, const ModelSpec& spec,
                      const BackendOptions& backend) {
  CheckRequest(request, spec, backend);
  return request;
}

SequencePages AllPages(const DecodeRequest& request, const ModelSpec& spec,
                       const BackendOptions& backend, KvLedger& ledger) {
  CheckRequest(request, spec, backend);
  return SequencePages(ledger, static_cast<int64_t>(request.prompt.size()) + request.max_tokens);
}

int Capacity(const DecodeRequest& request, int cells) {
  // Without drafts and guesses there is never a second branch.
  const bool alone = request.depths.empty() && request.early == EarlyChildren::kOff;
  return alone ? 1 : std::min(cells, kMostBranches);
}

}  // namespace

const StepCost LoopSpec::kRowsAreFree;

LoopSpec::LoopSpec(const DecodeRequest& request, const ModelSpec& spec,
                   const BackendOptions& backend, KvLedger& ledger, const StepCost& cost)
    : LoopSpec(request, spec, backend, ledger, AllPages(request, spec, backend, ledger), cost) {}

LoopSpec::LoopSpec(const DecodeRequest& request, const ModelSpec& spec,
                   const BackendOptions& backend, KvLedger& ledger, SequencePages pages,
                   const StepCost& cost)
    : request_(Checked(request, spec, backend)),
      recurrence_(spec.recurrence),
      vocab_(spec.vocab),
      readout_depths_(backend.readout_depths),
      ledger_(ledger),
      pages_(std::move(pages)),
      tree_(ledger, Capacity(request, backend.cells)),
      choice_(request, spec.recurrence, tree_.capacity(), cost),
      counts_(request.sampling.needs_counts(), request.prompt, request.max_tokens, spec.vocab,
              tree_.capacity()),
      ngrams_(request.early == EarlyChildren::kOff
                  ? 0
                  : static_cast<int64_t>(request.prompt.size()) + request.max_tokens) {
  const auto capacity = static_cast<size_t>(tree_.capacity());
  statistics_.accepted.resize(request_.depths.size());
  statistics_.rows_histogram.resize(capacity + 1);
  depth_seen_.resize(static_cast<size_t>(recurrence_));
  output_.reserve(static_cast<size_t>(request_.max_tokens));
  pending_.reserve(capacity);
  commits_.reserve(capacity);
  held_cells_.reserve(capacity);
  for (const int32_t token : request_.prompt) ngrams_.Push(token);
  if (!SpawnRoot()) Fail("no free cell for another request");
}

LoopSpec::~LoopSpec() {
  DropCommits();
}

PrefillPlan LoopSpec::Prefill() const {
  return {{pages_.pages().data()}, 0, std::span(request_.prompt).first(request_.prompt.size() - 1)};
}

void LoopSpec::Stop(FinishReason reason) {
  if (finished()) return;
  reason_ = reason;
  tree_.Clear();
  DropCommits();
}

// The last token that is decided is the first branch, at the start the prompt's last: its successor
// is decided like any other.
bool LoopSpec::SpawnRoot() {
  const int32_t token = output_.empty() ? request_.prompt.back() : output_.back().token;
  if (Spawn(kNoBranch, token, static_cast<int32_t>(decided()), 0) == kNoBranch) return false;
  StartGuesses();
  choice_.UpdateReach(tree_);
  choice_.ChooseAlone(tree_);
  return true;
}

int64_t LoopSpec::decided() const {
  return static_cast<int64_t>(request_.prompt.size() + output_.size()) - 1;
}

int64_t LoopSpec::positions() const {
  int64_t last = decided();
  for (const int32_t b : tree_.active()) last = std::max<int64_t>(last, tree_[b].position);
  return last + 1;
}

void LoopSpec::Suspend() {
  LOOPSPEC_CHECK(!finished() && pending_.empty() && commits_.empty());
  tree_.Reroot(kNoBranch, [&](const Branch& pruned) {
    Trace(TraceEvent::Kind::kPrune, pruned, pruned.token, pruned.position, 0);
  });
}

bool LoopSpec::Resume() {
  LOOPSPEC_CHECK(!finished() && tree_.size() == 0);
  return SpawnRoot();
}

// ---- Spawn: c <- NewBranch(); H_c <- P(X); r_c <- 0; Q_c <- {}; A <- A + c ----
// P itself runs with the next step: a row at depth 0 goes through it first.
int32_t LoopSpec::Spawn(int32_t parent, int32_t token, int32_t position, int proposal) {
  const int32_t c = tree_.Add(parent, token, position);
  if (c != kNoBranch) Trace(TraceEvent::Kind::kSpawn, tree_[c], token, position, proposal);
  return c;
}

// ---- foreach b in A_cur in parallel: H_b <- B(H_b); r_b <- r_b + 1 ----
// As many recurrences at once as lead nobody past a depth at which it is read out.

void LoopSpec::ListRows(int32_t sequence, std::vector<RowState>& rows) {
  choice_.List(tree_, sequence, rows);
}

void LoopSpec::Choose(std::span<const char> advance) {
  BranchChoice::Mark(tree_, advance);
}

int LoopSpec::NextReadout(int depth) const {
  if (!drafting_) return recurrence_;
  const auto next = std::upper_bound(request_.depths.begin(), request_.depths.end(), depth);
  return next == request_.depths.end() ? recurrence_ : *next;
}

bool LoopSpec::PassesDraft(int depth, int recurrences) const {
  if (drafting_) return false;
  const auto next = std::upper_bound(request_.depths.begin(), request_.depths.end(), depth);
  return next != request_.depths.end() && *next <= depth + recurrences;
}

int LoopSpec::StepsToReadout() const {
  int steps = recurrence_;
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
  LOOPSPEC_CHECK(!finished() && pending_.empty());
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
    Trace(TraceEvent::Kind::kAdvance, branch, branch.token, branch.position, recurrences);
    if (branch.depth == NextReadout(branch.depth - 1)) PlanReadout(b, row, plan);
  }
  CountStep(std::span(plan.rows).subspan(first_row),
            static_cast<int64_t>(plan.readouts.size() - first_readout), recurrences, depth_seen_,
            statistics_);
}

void LoopSpec::PlanCommits(StepPlan& plan) {
  const auto sequence = static_cast<int32_t>(plan.sequences.size());
  plan.sequences.push_back({pages_.pages().data()});
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
  const auto proposal = std::find(request_.depths.begin(), request_.depths.end(), branch.depth) -
                        request_.depths.begin();
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
  out.sampling = &request_.sampling;
  out.draw = {request_.seed, request_.choice, static_cast<uint32_t>(branch.position + 1)};
  const std::span<const TokenCount> counts = counts_.Of(tree_, b);
  out.counts = counts.data();
  out.counts_length = static_cast<int32_t>(counts.size());
  out.logprobs = verify ? request_.logprobs : -1;
  plan.readouts.push_back(out);
  pending_.push_back({b, branch.number, out.proposal});
}

void LoopSpec::Absorb(std::span<const Decision> decisions) {
  LOOPSPEC_CHECK(decisions.size() == pending_.size());
  if (!AllFinite(decisions)) return Stop(FinishReason::kError);
  if (request_.assume != nullptr) decisions = Assume(decisions);
  for (size_t i = 0; i < pending_.size(); ++i) {
    if (pending_[i].proposal >= 0) Draft(pending_[i].branch, pending_[i].proposal, decisions[i]);
  }
  // Verdicts from the root down, as many as are on the committed path: no branch passes its parent,
  // so whoever was verified below the root was verified in this step.
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
  choice_.ChooseAlone(tree_);
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

// ---- r_b = d_j: Q_b[j] <- (x, q_j, c_j), if the gate let a proposal through ----
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
  Proposal& draft = branch.proposals[branch.proposal_count++];
  draft = {proposal, decision.token, kNoBranch};
  Trace(TraceEvent::Kind::kDraft, branch, draft.token, branch.position + 1, proposal + 1);
  // A child that began on this token before it was drafted is the draft's child.
  if (branch.guess != kNoBranch && tree_[branch.guess].token == draft.token) {
    draft.child = std::exchange(branch.guess, kNoBranch);
    choice_.ObserveGuess(tree_[draft.child].match, true);
    ++statistics_.adopted;
    Trace(TraceEvent::Kind::kAdopt, branch, draft.token, branch.position + 1, proposal + 1);
  }
}

// ---- r_b = R: (x*, c*) <- Verify(b, p_R); Y <- Y || x*; A <- Reroot(A, c*) ----
// The cascade itself has run on the device (sampling/cascade.h); here its verdict takes effect.
void LoopSpec::Verify(const Decision& verdict) {
  const int32_t root = tree_.root();
  Branch& b = tree_[root];
  LOOPSPEC_CHECK(b.depth == recurrence_);
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
    statistics_.adopted += right ? 1 : 0;
    if (right) child = b.guess;
  }
  const int32_t position = b.position + 1;
  Trace(source > 0 ? TraceEvent::Kind::kAccept : TraceEvent::Kind::kFallback, b, verdict.token,
        position, source);
  choice_.ObserveVerdict(b, source - 1);
  held_cells_.push_back(tree_.ReleaseCell(root));
  commits_.push_back({held_cells_.back(), 0, b.position});
  Commit(verdict.token, source, child != kNoBranch && tree_[child].early, verdict);
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
    if (pruned.number != verified)
      Trace(TraceEvent::Kind::kPrune, pruned, pruned.token, pruned.position, 0);
  });
}

// ---- c_j <- Spawn(X || x_j), for drafts that have no branch yet and may be needed ----
void LoopSpec::SpawnChildren() {
  for (int i = 0; i < tree_.size(); ++i) {
    const int32_t b = tree_.active()[static_cast<size_t>(i)];
    for (int j = 0; j < tree_[b].proposal_count; ++j) {
      const Proposal draft = tree_[b].proposals[j];
      const double reach = tree_[b].reach * choice_.DraftRate(tree_[b], j);
      const int32_t position = tree_[b].position + 1;
      if (draft.child != kNoBranch || reach < kLeastReach || !MayHaveChild(draft.token, position))
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
  tree_.Prune(branch, [&](const Branch& pruned) {
    Trace(TraceEvent::Kind::kPrune, pruned, pruned.token, pruned.position, 0);
  });
}

void LoopSpec::LimitBranches(int most) {
  LOOPSPEC_CHECK(pending_.empty());
  tree_.set_limit(most);
  while (tree_.size() > std::max(1, most)) {
    int32_t least = kNoBranch;
    for (const int32_t b : tree_.active()) {
      if (b != tree_.root() && (least == kNoBranch || tree_[b].reach <= tree_[least].reach))
        least = b;
    }
    Evict(least);
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

// ---- Early children: begun on a guess, before the parent's first draft ----
// Guesses follow each other, so that several tokens can begin together.
void LoopSpec::StartGuesses() {
  if (request_.early == EarlyChildren::kOff) return;
  const int first_depth = request_.depths.empty() ? 1 : request_.depths[0];
  for (int i = 0; i < tree_.size(); ++i) {
    const int32_t b = tree_.active()[static_cast<size_t>(i)];
    const Branch& branch = tree_[b];
    if (branch.depth >= first_depth || branch.guess != kNoBranch) continue;
    int run = 0;  // guesses that b itself rests on
    for (int32_t a = b; a != kNoBranch && IsGuess(a); a = tree_[a].parent) ++run;
    if (run >= kLongestGuess) continue;
    const Guess guess = GuessAfter(b);
    if (guess.token < 0) continue;
    const double reach = branch.reach * choice_.GuessRate(guess.match);
    const int32_t position = branch.position + 1;
    if (reach < kLeastGuessReach || !MayHaveChild(guess.token, position)) continue;
    const int32_t child = Spawn(b, guess.token, position, 0);
    if (child == kNoBranch) return;
    tree_[child].early = true;
    tree_[child].match = guess.match;
    tree_[child].reach = reach;
    tree_[b].guess = child;
    ++statistics_.guesses;
  }
}

bool LoopSpec::IsGuess(int32_t b) const {
  const int32_t parent = tree_[b].parent;
  return parent != kNoBranch && tree_[parent].guess == b;
}

// What followed the last tokens of b's prefix when they stood in the text before.
Guess LoopSpec::GuessAfter(int32_t b) const {
  if (request_.assume != nullptr) {
    const auto next = static_cast<uint32_t>(tree_[b].position + 1);
    return AssumeGuess(*request_.assume, {request_.seed, request_.choice, next}, vocab_);
  }
  int32_t chain[GuessRates::kLongestMatch];
  size_t length = 0;
  for (int32_t a = b; a != tree_.root() && length < std::size(chain); a = tree_[a].parent)
    chain[length++] = tree_[a].token;
  return ngrams_.Find({chain, length});
}

// A draft that was another token ends the guess; so late, because decisions of the same step were
// for branches below it too.
void LoopSpec::DropWrongGuesses() {
  if (request_.early == EarlyChildren::kOff) return;
  for (int i = 0; i < tree_.size(); ++i) {
    const Branch& branch = tree_[tree_.active()[static_cast<size_t>(i)]];
    if (branch.guess == kNoBranch || branch.proposal_count == 0) continue;
    choice_.ObserveGuess(tree_[branch.guess].match, false);
    Evict(branch.guess);
  }
}

// ---- Y <- Y || x* ----
void LoopSpec::Commit(int32_t token, int source, bool early, const Decision& decision) {
  output_.push_back({token, source, early, decision.logprob, decision.top});
  counts_.Commit(token);
  ngrams_.Push(token);
  statistics_.early += early ? 1 : 0;
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

// Timing simulations only (request.assume).
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

void LoopSpec::Trace(TraceEvent::Kind kind, const Branch& branch, int32_t token, int32_t position,
                     int proposal) {
  if (!request_.trace) return;
  const int32_t parent = branch.parent == kNoBranch ? -1 : tree_[branch.parent].number;
  trace_.push_back(
      {kind, statistics_.steps, branch.number, parent, token, position, branch.depth, proposal});
}

}  // namespace loopspec

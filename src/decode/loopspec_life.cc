// How a request begins, is suspended, resumes and ends.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "decode/loopspec.h"

namespace loopspec {
namespace {

std::shared_ptr<const ResolvedRequest> Checked(ResolvedRequest request, const ModelSpec& spec,
                                               const BackendOptions& backend) {
  CheckRequest(request, spec, backend);
  return Share(std::move(request), spec);
}

int Capacity(const ResolvedRequest& request, int cells) {
  // Without drafts and guesses there is never a second branch.
  const bool alone = request.depths.empty() && !request.guesses;
  if (alone) return 1;
  return request.laboratory.every_branch ? cells : std::min(cells, kMostBranches);
}

// By a plan of keys a branch reads the last loop of all spans but its own and the one before, and
// only of committed positions is there a last loop.
int LongestChain(const BackendOptions& backend) {
  return backend.key_plan ? backend.key_plan->span : std::numeric_limits<int>::max();
}

int64_t LongestText(const ResolvedRequest& request) {
  return static_cast<int64_t>(request.prompt.size()) + request.max_tokens;
}

}  // namespace

const StepCost LoopSpec::kRowsAreFree;

LoopSpec::LoopSpec(ResolvedRequest request, const ModelSpec& spec, const BackendOptions& backend,
                   KvLedger& ledger, const StepCost& cost)
    : LoopSpec(Checked(std::move(request), spec, backend), 0, spec, backend, ledger,
               SequencePages(ledger), nullptr, cost) {
  pages_ = SequencePages(ledger, LongestText(*request_));
}

LoopSpec::LoopSpec(std::shared_ptr<const ResolvedRequest> request, int choice,
                   const ModelSpec& spec, const BackendOptions& backend, KvLedger& ledger,
                   SequencePages pages, std::shared_ptr<DecodeObserver> observer,
                   const StepCost& cost)
    : request_(std::move(request)),
      request_choice_(static_cast<uint32_t>(choice)),
      recurrence_(request_->recurrence),
      readout_depths_(backend.readout_depths),
      longest_chain_(LongestChain(backend)),
      ledger_(ledger),
      pages_(std::move(pages)),
      tree_(ledger, Capacity(*request_, backend.cells)),
      observer_(observer ? std::move(observer) : std::make_shared<DecodeObserver>(request_->trace)),
      choice_(*request_, recurrence_, tree_.capacity(), cost),
      counts_(request_->sampling.needs_counts(), request_->prompt, request_->max_tokens, spec.vocab,
              tree_.capacity()),
      grammar_(request_->grammar, tree_.capacity(), request_->encode, request_->thinking),
      ngrams_(request_->guesses ? LongestText(*request_) : 0) {
  const auto capacity = static_cast<size_t>(tree_.capacity());
  observer_->Begin(tree_, static_cast<int>(request_->depths.size()), recurrence_);
  output_.reserve(static_cast<size_t>(request_->max_tokens));
  pending_.reserve(capacity);
  commits_.reserve(capacity);
  held_cells_.reserve(capacity);
  for (const int32_t token : request_->prompt) ngrams_.Push(token);
  if (!SpawnRoot()) Fail("no free cell for another request");
}

LoopSpec::~LoopSpec() {
  DropCommits();
}

PrefillPlan LoopSpec::Prefill() const {
  return {PlanOf(pages_, recurrence_), 0,
          std::span(request_->prompt).first(request_->prompt.size() - 1)};
}

void LoopSpec::Stop(FinishReason reason, const std::string& error) {
  if (finished()) return;
  reason_ = reason;
  if (!error.empty()) error_ = error;
  tree_.Clear();
  DropCommits();
}

// The last token that is decided is the first branch, at the start the prompt's last: its successor
// is decided like any other.
bool LoopSpec::SpawnRoot() {
  const int32_t token = output_.empty() ? request_->prompt.back() : output_.back().id;
  if (Spawn(kNoBranch, token, static_cast<int32_t>(decided()), 0) == kNoBranch) return false;
  StartGuesses();
  choice_.UpdateReach(tree_);
  choice_.ChooseAlone(tree_, drafting_);
  return true;
}

int64_t LoopSpec::decided() const {
  return static_cast<int64_t>(request_->prompt.size() + output_.size()) - 1;
}

int64_t LoopSpec::positions() const {
  int64_t last = decided();
  for (const int32_t b : tree_.active()) last = std::max<int64_t>(last, tree_[b].position);
  return last + 1;
}

void LoopSpec::Suspend() {
  LOOPSPEC_CHECK(!finished() && pending_.empty() && commits_.empty());
  tree_.Reroot(kNoBranch, [&](const Branch& pruned) { observer_->Pruned(pruned); });
}

bool LoopSpec::Resume() {
  LOOPSPEC_CHECK(!finished() && tree_.size() == 0);
  return SpawnRoot();
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

}  // namespace loopspec

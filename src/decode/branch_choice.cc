#include "decode/branch_choice.h"

#include <algorithm>
#include <bitset>

namespace loopspec {
namespace {

// Branches less likely than this neither fill a group nor keep one waiting.
constexpr double kCounts = 0.2;

// Branches that would pass their parent stay where they are.
void KeepBehindParents(BranchTree& tree) {
  for (const int32_t id : tree.active()) {
    Branch& branch = tree[id];
    if (branch.parent == kNoBranch) continue;
    const Branch& parent = tree[branch.parent];
    if (!parent.advancing && parent.depth <= branch.depth) branch.advancing = false;
  }
}

uint32_t Drafted(const Branch& branch) {
  uint32_t drafted = 0;
  for (int i = 0; i < branch.proposal_count; ++i) drafted |= 1u << branch.proposals[i].index;
  return drafted;
}

}  // namespace

BranchChoice::BranchChoice(const ResolvedRequest& request, int recurrence, int capacity,
                           const StepCost& cost)
    : depths_(request.depths),
      recurrence_(recurrence),
      budget_(request.max_rows == 0 ? capacity : std::min(request.max_rows, capacity)),
      fixed_group_(request.group),
      adapt_(request.laboratory.adapt_rates),
      every_branch_(request.laboratory.every_branch),
      cost_(cost),
      rates_(static_cast<int>(request.depths.size()), request.prior),
      chooser_(recurrence, static_cast<int>(request.depths.size()) + 1, capacity) {
  rows_.reserve(static_cast<size_t>(capacity));
  advance_.reserve(static_cast<size_t>(capacity));
}

void BranchChoice::ObserveVerdict(const Branch& verified, int accepted) {
  // Where no draft was made nothing is learnt about drafts.
  if (adapt_ && !verified.undrafted) rates_.Observe(Drafted(verified), accepted);
}

void BranchChoice::ObserveGuess(int match, bool right) {
  if (adapt_) guesses_.Observe(match, right);
}

int BranchChoice::Passed(const Branch& branch) const {
  return static_cast<int>(std::upper_bound(depths_.begin(), depths_.end(), branch.depth) -
                          depths_.begin());
}

double BranchChoice::DraftRate(const Branch& parent, int draft) const {
  return rates_.Of(Passed(parent), Drafted(parent), parent.proposals[draft].index);
}

void BranchChoice::UpdateReach(BranchTree& tree) const {
  for (const int32_t id : tree.active()) {
    Branch& branch = tree[id];
    if (id == tree.root()) branch.reach = 1.0;
    // Children come later in the list.
    for (int i = 0; i < branch.proposal_count; ++i) {
      const int32_t child = branch.proposals[i].child;
      if (child != kNoBranch) tree[child].reach = branch.reach * DraftRate(branch, i);
    }
    if (branch.guess != kNoBranch)
      tree[branch.guess].reach = branch.reach * GuessRate(tree[branch.guess].match);
  }
}

int32_t BranchChoice::Dispensable(const BranchTree& tree, double reach) const {
  int32_t least = kNoBranch;
  for (const int32_t id : tree.active()) {
    if (id == tree.root() || tree[id].reach >= reach || !tree.IsLeaf(id)) continue;
    if (least == kNoBranch || tree[id].reach < tree[least].reach) least = id;
  }
  return least;
}

int64_t BranchChoice::Context(const BranchTree& tree) const {
  return cost_.context >= 0 ? cost_.context : tree[tree.root()].position;
}

void BranchChoice::ChooseGroup(const BranchTree& tree) {
  if (fixed_group_ > 0 || depths_.empty()) {
    group_ = depths_.empty() ? 1 : fixed_group_;  // nowhere to wait without a proposal depth
    return;
  }
  GroupQuestion question;
  question.recurrence = recurrence_;
  question.first_depth = depths_[0];
  question.second_depth = depths_.size() > 1 ? depths_[1] : 0;
  question.first = rates_.Share(0);
  question.second = depths_.size() > 1 ? rates_.Share(1) : 0;
  question.context = Context(tree);
  question.most = std::min(kMaxGroup, budget_);
  group_ = BestGroup(question, cost_);
}

// Whether the branches that wait at d1 go on: enough generations stand there, or none that counts
// can join them.
bool BranchChoice::GroupIsReady(const BranchTree& tree) const {
  const int32_t first = tree[tree.root()].position;
  std::bitset<256> generations;
  bool more_to_come = false;
  for (const int32_t id : tree.active()) {
    const Branch& branch = tree[id];
    if (branch.reach < kCounts) continue;
    if (branch.depth == depths_[0])
      generations.set(static_cast<size_t>(branch.position - first) % generations.size());
    more_to_come = more_to_come || branch.depth < depths_[0];
  }
  return !more_to_come || static_cast<int>(generations.count()) >= group_;
}

void BranchChoice::List(const BranchTree& tree, int32_t sequence, std::vector<RowState>& rows) {
  ChooseGroup(tree);
  const bool wait = group_ > 1 && !GroupIsReady(tree);
  const int64_t context = Context(tree);
  for (const int32_t id : tree.active()) {
    const Branch& branch = tree[id];
    rows.push_back({sequence, branch.depth, context, branch.reach,
                    wait && branch.depth == depths_[0], every_branch_});
  }
}

void BranchChoice::Mark(BranchTree& tree, std::span<const char> advance) {
  size_t i = 0;
  for (const int32_t id : tree.active()) tree[id].advancing = advance[i++] != 0;
  KeepBehindParents(tree);
  root_waits_ = 0;
}

void BranchChoice::ChooseAlone(BranchTree& tree, bool drafting) {
  rows_.clear();
  List(tree, 0, rows_);
  chooser_.Choose(rows_, budget_, cost_, advance_);
  Mark(tree, advance_);
  if (!drafting || every_branch_ || group_ > 1) return;
  root_waits_ = DelayOfLastReadout(tree);
  if (root_waits_ == 0) return;
  tree[tree.root()].advancing = false;
  KeepBehindParents(tree);
}

void BranchChoice::EndWait(BranchTree& tree) {
  for (const int32_t id : tree.active()) {
    if (tree[id].advancing) return;
  }
  tree[tree.root()].advancing = true;
  root_waits_ = 0;
}

// Where d does not divide R, the root would be read out in a step of its own, by a pass over C for
// one row. It may wait instead until it comes to R together with the next draft, so that one pass
// serves both. That saves a pass if the draft is still wanted after the verdict, and costs the
// recurrences of the delay if the verdict is none of the root's drafts. Recurrences until the root
// must go on for that; 0: it does not wait.
int BranchChoice::DelayOfLastReadout(const BranchTree& tree) const {
  const Branch& root = tree[tree.root()];
  if (!root.advancing) return 0;
  int rows = 0, to_draft = recurrence_;
  double wanted = 0;  // the reach of the branch that is drafted from next
  for (const int32_t id : tree.active()) {
    const Branch& branch = tree[id];
    if (!branch.advancing) continue;
    ++rows;
    const int passed = Passed(branch);
    if (passed == static_cast<int>(depths_.size())) continue;
    const int left = depths_[static_cast<size_t>(passed)] - branch.depth;
    if (left > to_draft) continue;
    wanted = left < to_draft ? branch.reach : std::max(wanted, branch.reach);
    to_draft = left;
  }
  const int delay = to_draft - (recurrence_ - root.depth);
  if (wanted == 0 || delay <= 0) return 0;
  double drafted = 0;  // that the verdict is a draft, or a guess, which has a branch
  for (const int32_t id : tree.active()) {
    if (tree[id].parent == tree.root()) drafted += tree[id].reach;
  }
  const double lost = std::max(0.0, 1.0 - drafted) * delay * cost_.Recurrence(rows);
  return wanted * cost_.readout > lost ? delay : 0;
}

}  // namespace loopspec

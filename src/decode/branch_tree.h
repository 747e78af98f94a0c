// The live branches of one request: a tree whose root is the token whose successor is decided next.
// Slots are allocated once; adding, walking and pruning branches allocates nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/ledger.h"
#include "sampling/cascade.h"

namespace loopspec {

inline constexpr int32_t kNoBranch = -1;

// A draft on record (the paper's Q_b): a token, the proposal it came from, and the branch that
// computes it, if any.
struct Proposal {
  int32_t index = 0;  // among the proposal depths, from 0
  int32_t token = 0;
  int32_t child = kNoBranch;
};

// The recurrent computation of one token on one prefix; it is that token.
struct Branch {
  int32_t token = 0;
  int32_t position = 0;        // absolute
  int32_t depth = 0;           // r_b
  int32_t parent = kNoBranch;  // within the tree; the root's chain is committed
  int32_t cell = -1;           // its memory on the device
  int32_t number = 0;          // in order of birth
  int32_t proposal_count = 0;
  Proposal proposals[kMaxProposals];

  // A child begun on a guess, before this branch's first draft was drawn.
  int32_t guess = kNoBranch;
  bool early = false;  // this branch was begun on a guess ...
  int32_t match = 0;   // ... by an n-gram match of this length

  bool undrafted = false;  // passed a proposal depth without a readout

  // For the choice of rows (row_choice.h).
  double reach = 1.0;      // probability to be on the committed path
  bool advancing = false;  // has a row in the next step
};

// Branches of one text alive at once, waiting ones included; the paper's schedule, which has a
// branch for every draft, may take as many as there are cells.
inline constexpr int kMostBranches = 256;

class BranchTree {
 public:
  // At most `capacity` branches, whose cells come from `ledger`.
  BranchTree(KvLedger& ledger, int capacity);
  ~BranchTree();
  BranchTree(const BranchTree&) = delete;
  BranchTree& operator=(const BranchTree&) = delete;

  // A branch at depth 0, or kNoBranch when the tree or the device is full.
  int32_t Add(int32_t parent, int32_t token, int32_t position);
  // From now on a tree of `limit` branches is full, less than its capacity.
  void set_limit(int limit) { limit_ = limit; }

  // Keeps `root` and its descendants; calls pruned(branch) for every other one and frees it.
  template <typename F>
  void Reroot(int32_t root, F pruned);
  // Frees `top` and its descendants, after calling pruned(branch) for each. Nothing may refer to
  // `top` any more.
  template <typename F>
  void Prune(int32_t top, F pruned);
  // Frees every branch.
  void Clear();

  // Takes the branch's cell out of the tree's hands: the caller gives it back to the ledger.
  int32_t ReleaseCell(int32_t id);

  Branch& operator[](int32_t id) { return branches_[static_cast<size_t>(id)]; }
  const Branch& operator[](int32_t id) const { return branches_[static_cast<size_t>(id)]; }
  int32_t root() const { return root_; }
  // Live branches in order of birth: parents before their children.
  std::span<const int32_t> active() const { return active_; }
  int size() const { return static_cast<int>(active_.size()); }
  int capacity() const { return capacity_; }
  bool IsLeaf(int32_t id) const;

 private:
  bool DescendsFrom(int32_t branch, int32_t ancestor) const;
  void Free(int32_t id);
  // Frees the active branches for which `keep` is false, after calling pruned(branch) for each.
  template <typename Keep, typename F>
  void Filter(Keep keep, F pruned);

  KvLedger& ledger_;
  int capacity_;
  int limit_;
  int32_t root_ = kNoBranch;
  int32_t births_ = 0;
  std::vector<Branch> branches_;
  std::vector<int32_t> free_;
  std::vector<int32_t> active_;
  std::vector<char> doomed_;  // by place in active_, inside Filter
};

template <typename Keep, typename F>
void BranchTree::Filter(Keep keep, F pruned) {
  // Descent is decided before any parent is freed: marks first, then frees.
  doomed_.resize(active_.size());
  for (size_t i = 0; i < active_.size(); ++i) doomed_[i] = keep(active_[i]) ? 0 : 1;
  size_t kept = 0;
  for (size_t i = 0; i < active_.size(); ++i) {
    const int32_t id = active_[i];
    if (doomed_[i] == 0) {
      active_[kept++] = id;
    } else {
      pruned(branches_[static_cast<size_t>(id)]);
      Free(id);
    }
  }
  active_.resize(kept);
}

template <typename F>
void BranchTree::Reroot(int32_t root, F pruned) {
  Filter([&](int32_t id) { return DescendsFrom(id, root); }, pruned);
  root_ = root;
  if (root != kNoBranch) branches_[static_cast<size_t>(root)].parent = kNoBranch;
}

template <typename F>
void BranchTree::Prune(int32_t top, F pruned) {
  Filter([&](int32_t id) { return !DescendsFrom(id, top); }, pruned);
}

}  // namespace loopspec

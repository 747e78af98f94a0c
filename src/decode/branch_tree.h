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
  int32_t generation = 0;      // distance from the root of its birth: older branches first
  int32_t cell = -1;           // its memory on the device
  int32_t number = 0;          // in order of birth, for the trace
  int32_t proposal_count = 0;
  Proposal proposals[kMaxProposals];
};

class BranchTree {
 public:
  // At most `capacity` branches, whose cells come from `ledger`.
  BranchTree(KvLedger& ledger, int capacity);
  ~BranchTree();
  BranchTree(const BranchTree&) = delete;
  BranchTree& operator=(const BranchTree&) = delete;

  // A branch at depth 0, or kNoBranch when the tree or the device is full.
  int32_t Add(int32_t parent, int32_t token, int32_t position);

  // Keeps `root` and its descendants; calls pruned(branch) for every other one and frees it.
  template <typename F>
  void Reroot(int32_t root, F pruned);
  // Frees every branch.
  void Clear();

  Branch& operator[](int32_t id) { return branches_[static_cast<size_t>(id)]; }
  const Branch& operator[](int32_t id) const { return branches_[static_cast<size_t>(id)]; }
  int32_t root() const { return root_; }
  // Live branches, older ones first.
  std::span<const int32_t> active() const { return active_; }
  int size() const { return static_cast<int>(active_.size()); }

 private:
  bool DescendsFrom(int32_t branch, int32_t ancestor) const;
  void Free(int32_t id);

  KvLedger& ledger_;
  int capacity_;
  int32_t root_ = kNoBranch;
  int32_t births_ = 0;
  std::vector<Branch> branches_;
  std::vector<int32_t> free_;
  std::vector<int32_t> active_;
};

template <typename F>
void BranchTree::Reroot(int32_t root, F pruned) {
  size_t kept = 0;
  // Descent is decided before any parent is freed: marks first, then frees.
  for (const int32_t id : active_) {
    if (!DescendsFrom(id, root)) branches_[static_cast<size_t>(id)].generation = -1;
  }
  for (const int32_t id : active_) {
    if (branches_[static_cast<size_t>(id)].generation >= 0) {
      active_[kept++] = id;
    } else {
      pruned(branches_[static_cast<size_t>(id)]);
      Free(id);
    }
  }
  active_.resize(kept);
  root_ = root;
  if (root != kNoBranch) branches_[static_cast<size_t>(root)].parent = kNoBranch;
}

}  // namespace loopspec

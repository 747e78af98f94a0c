#include "decode/branch_tree.h"

#include "base/check.h"

namespace loopspec {

BranchTree::BranchTree(KvLedger& ledger, int capacity)
    : ledger_(ledger), capacity_(capacity), branches_(static_cast<size_t>(capacity)) {
  for (int32_t id = capacity - 1; id >= 0; --id) free_.push_back(id);
  active_.reserve(static_cast<size_t>(capacity));
}

BranchTree::~BranchTree() {
  Clear();
}

int32_t BranchTree::Add(int32_t parent, int32_t token, int32_t position) {
  if (free_.empty()) return kNoBranch;
  const int cell = ledger_.cells().Take();
  if (cell < 0) return kNoBranch;
  const int32_t id = free_.back();
  free_.pop_back();
  Branch& branch = branches_[static_cast<size_t>(id)];
  branch.token = token;
  branch.position = position;
  branch.depth = 0;
  branch.parent = parent;
  branch.generation =
      parent == kNoBranch ? 0 : branches_[static_cast<size_t>(parent)].generation + 1;
  branch.cell = cell;
  branch.number = births_++;
  branch.proposal_count = 0;
  active_.push_back(id);
  if (parent == kNoBranch) {
    LOOPSPEC_CHECK(root_ == kNoBranch);
    root_ = id;
  }
  return id;
}

bool BranchTree::DescendsFrom(int32_t branch, int32_t ancestor) const {
  while (branch != kNoBranch && branch != ancestor)
    branch = branches_[static_cast<size_t>(branch)].parent;
  return branch != kNoBranch;
}

void BranchTree::Free(int32_t id) {
  ledger_.cells().Give(branches_[static_cast<size_t>(id)].cell);
  free_.push_back(id);
}

void BranchTree::Clear() {
  for (const int32_t id : active_) Free(id);
  active_.clear();
  root_ = kNoBranch;
}

}  // namespace loopspec

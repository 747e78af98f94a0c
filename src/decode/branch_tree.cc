#include "decode/branch_tree.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace loopspec {

BranchTree::BranchTree(KvLedger& ledger, int capacity)
    : ledger_(ledger),
      capacity_(capacity),
      limit_(capacity),
      branches_(static_cast<size_t>(capacity)) {
  for (int32_t id = capacity - 1; id >= 0; --id) free_.push_back(id);
  active_.reserve(static_cast<size_t>(capacity));
  doomed_.reserve(static_cast<size_t>(capacity));
}

BranchTree::~BranchTree() {
  Clear();
}

int32_t BranchTree::Add(int32_t parent, int32_t token, int32_t position) {
  if (free_.empty() || (parent != kNoBranch && size() >= limit_)) return kNoBranch;
  const int cell = ledger_.cells().Take();
  if (cell < 0) return kNoBranch;
  const int32_t id = free_.back();
  free_.pop_back();
  Branch& branch = branches_[static_cast<size_t>(id)];
  branch = Branch{};
  branch.token = token;
  branch.position = position;
  branch.parent = parent;
  branch.cell = cell;
  branch.number = births_++;
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

bool BranchTree::IsLeaf(int32_t id) const {
  return std::none_of(active_.begin(), active_.end(), [&](int32_t other) {
    return branches_[static_cast<size_t>(other)].parent == id;
  });
}

int32_t BranchTree::ReleaseCell(int32_t id) {
  return std::exchange(branches_[static_cast<size_t>(id)].cell, -1);
}

void BranchTree::Free(int32_t id) {
  const int32_t cell = branches_[static_cast<size_t>(id)].cell;
  if (cell >= 0) ledger_.cells().Give(cell);
  free_.push_back(id);
}

void BranchTree::Clear() {
  for (const int32_t id : active_) Free(id);
  active_.clear();
  root_ = kNoBranch;
}

}  // namespace loopspec

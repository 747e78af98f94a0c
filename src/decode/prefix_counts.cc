#include "decode/prefix_counts.h"

#include <algorithm>

namespace loopspec {

PrefixCounts::PrefixCounts(bool enabled, std::span<const int32_t> prompt, int max_tokens, int vocab,
                           int readouts)
    : enabled_(enabled) {
  if (!enabled) return;
  index_.assign(static_cast<size_t>(vocab), -1);
  // Distinct tokens there can be, so that no step allocates once each list has been used.
  distinct_ = std::min(static_cast<size_t>(vocab), prompt.size() + static_cast<size_t>(max_tokens));
  seen_.reserve(distinct_);
  lists_.reserve(static_cast<size_t>(readouts));
  for (const int32_t token : prompt) {
    int32_t& index = index_[static_cast<size_t>(token)];
    if (index >= 0) continue;
    index = static_cast<int32_t>(seen_.size());
    seen_.push_back({token, 0});
  }
}

void PrefixCounts::Commit(int32_t token) {
  if (!enabled_) return;
  int32_t& index = index_[static_cast<size_t>(token)];
  if (index < 0) {
    index = static_cast<int32_t>(seen_.size());
    seen_.push_back({token, 0});
  }
  ++seen_[static_cast<size_t>(index)].generated;
}

TokenCount& PrefixCounts::Entry(std::vector<TokenCount>& list, int32_t token) const {
  const int32_t index = index_[static_cast<size_t>(token)];
  if (index >= 0) return list[static_cast<size_t>(index)];
  // Tokens that only this chain has: few, at the end.
  const auto begin = list.begin() + static_cast<int64_t>(seen_.size());
  const auto found =
      std::find_if(begin, list.end(), [&](const TokenCount& c) { return c.token == token; });
  if (found != list.end()) return *found;
  list.push_back({token, 0});
  return list.back();
}

std::span<const TokenCount> PrefixCounts::Of(const BranchTree& tree, int32_t branch) {
  if (!enabled_) return {};
  if (used_ == lists_.size()) lists_.emplace_back().reserve(distinct_);
  std::vector<TokenCount>& list = lists_[used_++];
  list = seen_;
  // The root's token is committed output (or the prompt's end) and counted already.
  for (int32_t b = branch; b != tree.root(); b = tree[b].parent)
    ++Entry(list, tree[b].token).generated;
  return list;
}

}  // namespace loopspec

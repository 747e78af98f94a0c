// How often each token stands in a branch's prefix, for penalties. Branches share the committed
// part and add their own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "decode/branch_tree.h"
#include "sampling/params.h"

namespace loopspec {

class PrefixCounts {
 public:
  // Does nothing unless `enabled`. `readouts`: most of them in a step.
  PrefixCounts(bool enabled, std::span<const int32_t> prompt, int max_tokens, int vocab,
               int readouts);

  void Commit(int32_t token);

  // The counts of the prefix that ends with `branch` itself; valid until Release.
  std::span<const TokenCount> Of(const BranchTree& tree, int32_t branch);
  void Release() { used_ = 0; }

 private:
  TokenCount& Entry(std::vector<TokenCount>& list, int32_t token) const;

  bool enabled_;
  size_t distinct_ = 0;                         // tokens a prefix can have at most
  std::vector<int32_t> index_;                  // token -> place in seen_, -1: not there
  std::vector<TokenCount> seen_;                // prompt and output
  std::vector<std::vector<TokenCount>> lists_;  // one per readout of a step, reused
  size_t used_ = 0;
};

}  // namespace loopspec

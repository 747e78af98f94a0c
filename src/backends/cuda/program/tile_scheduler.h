// Which CTA reads which tiles of a matrix.
#pragma once

#include <vector>

#include "backends/cuda/program/op.h"

namespace loopspec::cuda {

// Divides the tiles of one matrix after the other among the CTAs. A CTA that got less of one matrix
// gets more of the next. Its rings run ahead meanwhile, so only the sums over neighbouring matrices
// have to be even.
class TileScheduler {
 public:
  explicit TileScheduler(int ctas) : ctas_(ctas), load_(static_cast<size_t>(ctas), 0) {}

  int ctas() const { return ctas_; }

  // One share per CTA. `split_k`: into how many groups the CTAs are divided, each of which reads
  // all tiles for its part of k; 1 or the number of chunks of k.
  std::vector<MatrixShare> Assign(const MatrixShare& whole, int tiles, int split_k);

 private:
  std::vector<int> GroupSizes(int tiles, const std::vector<int>& cuts) const;

  int ctas_;
  std::vector<int64_t> load_;  // [cta]: blocks of k read so far
};

}  // namespace loopspec::cuda

#include "backends/cuda/program/tile_scheduler.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace loopspec::cuda {

std::vector<MatrixShare> TileScheduler::Assign(const MatrixShare& whole, int tiles, int split_k) {
  const int chunks = whole.chunk_end;
  std::vector<int> cuts;  // in blocks of k
  for (int group = 0; group <= split_k; ++group)
    cuts.push_back(group == split_k ? whole.k_blocks : group * kWarps);

  std::vector<MatrixShare> pieces;
  const std::vector<int> sizes = GroupSizes(tiles, cuts);
  for (int group = 0; group < split_k; ++group) {
    const int64_t size = sizes[static_cast<size_t>(group)];
    for (int64_t i = 0; i < size; ++i) {
      MatrixShare piece = whole;
      piece.tile_begin = static_cast<int32_t>(tiles * i / size);
      piece.tile_end = static_cast<int32_t>(tiles * (i + 1) / size);
      piece.chunk_begin = static_cast<int16_t>(group);
      piece.chunk_end = static_cast<int16_t>(split_k == 1 ? chunks : group + 1);
      pieces.push_back(piece);
    }
  }
  const auto weight = [](const MatrixShare& s) {
    return int64_t{s.tile_end - s.tile_begin} *
           (std::min<int>(s.k_blocks, s.chunk_end * kWarps) - s.chunk_begin * kWarps);
  };
  // The largest piece goes to the CTA that has read least so far.
  std::stable_sort(pieces.begin(), pieces.end(), [&](const MatrixShare& a, const MatrixShare& b) {
    return weight(a) > weight(b);
  });
  std::vector<size_t> order(static_cast<size_t>(ctas_));
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return load_[a] < load_[b]; });
  std::vector<MatrixShare> shares(static_cast<size_t>(ctas_), whole);
  for (MatrixShare& share : shares) share.tile_end = share.tile_begin = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    shares[order[i]] = pieces[i];
    load_[order[i]] += weight(pieces[i]);
  }
  return shares;
}

// How many CTAs work on each part of k: one more again and again for the part whose CTAs have most
// to read.
std::vector<int> TileScheduler::GroupSizes(int tiles, const std::vector<int>& cuts) const {
  const size_t groups = cuts.size() - 1;
  std::vector<int> sizes(groups, 1);
  LOOPSPEC_CHECK(static_cast<int>(groups) <= ctas_);
  for (int left = ctas_ - static_cast<int>(groups); left > 0; --left) {
    size_t slowest = groups;
    double most = 0;
    for (size_t g = 0; g < groups; ++g) {
      const double each = static_cast<double>(tiles) / sizes[g] * (cuts[g + 1] - cuts[g]);
      if (sizes[g] < tiles && each > most) {
        most = each;
        slowest = g;
      }
    }
    if (slowest == groups) break;
    ++sizes[slowest];
  }
  return sizes;
}

}  // namespace loopspec::cuda

// What the large products of prompts have in common, whatever their weights are stored as: the
// order of their tiles, and a place in a ring of stages.
#pragma once

#include <cstdint>

namespace loopspec::cuda {

struct GemmShape {
  int rows, outputs;  // outputs: rows of the weights
  int k_stages;
  int first_row;
  uint64_t weights_hint;  // how long the second-level cache keeps them
};

// Rows of tiles that are gone through together, column by column: their inputs stay in the
// second-level cache.
inline constexpr int kRowsTogether = 2048;

// The tiles in the order in which the grid takes them.
template <int kHeight, int kWidth>
class TileOrder {
 public:
  __device__ explicit TileOrder(const GemmShape& shape)
      : rows_((shape.rows + kHeight - 1) / kHeight),
        columns_((shape.outputs + kWidth - 1) / kWidth) {}
  __device__ int count() const { return rows_ * columns_; }
  __device__ void At(int index, int& row, int& column) const {
    constexpr int kTogether = kRowsTogether / kHeight;
    const int band = index / (kTogether * columns_), in_band = index % (kTogether * columns_);
    const int height = min(kTogether, rows_ - band * kTogether);
    row = (band * kTogether + in_band % height) * kHeight;
    column = in_band / height * kWidth;
  }

 private:
  int rows_, columns_;
};

// A stage of the ring and the parity of its current use.
template <int kCount>
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Next() {
    if (++stage == kCount) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace loopspec::cuda

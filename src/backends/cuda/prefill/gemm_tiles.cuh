// What the large products of prompts have in common, whatever their weights are stored as: the
// order of their tiles, and the ring of stages that one thread fills.
#pragma once

#include <cstdint>

#include "backends/cuda/device/hopper.cuh"

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

// One thread fills the ring, for the tiles `first`, `first` + `step`, and so on. The first weights
// are on their way before the kernel that makes the inputs has ended. `empty`: the barriers of the
// stages that are free again. copy_weights(stage, k, column) also says how many bytes the stage
// will have; copy_inputs(stage, k, row).
template <int kCount, typename Order, typename CopyWeights, typename CopyInputs>
__device__ __forceinline__ void FillRing(const Order& order, int k_stages, int first, int step,
                                         uint32_t empty, const CopyWeights& copy_weights,
                                         const CopyInputs& copy_inputs) {
  // k stages are at least as many as the ring has, or the ring is not filled ahead.
  const int ahead = k_stages >= kCount && first < order.count() ? kCount : 0;
  int row, column;
  order.At(first, row, column);
  for (int k = 0; k < ahead; ++k) copy_weights(k, k, column);
  WaitForKernelBefore();
  RingPlace<kCount> at;
  for (int tile = first; tile < order.count(); tile += step) {
    order.At(tile, row, column);
    for (int k = 0; k < k_stages; ++k) {
      if (tile != first || k >= ahead) {
        WaitBarrier(empty + at.stage * 8, at.parity ^ 1);
        copy_weights(at.stage, k, column);
      }
      copy_inputs(at.stage, k, row);
      at.Next();
    }
  }
}

}  // namespace loopspec::cuda

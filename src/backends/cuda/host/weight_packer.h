// Codes of a checkpoint's matrix, put in the order of the matrix instruction (weight_form.h).
#pragma once

#include <span>
#include <vector>

#include "backends/cuda/host/device_model.h"

namespace loopspec::cuda {

class WeightPacker {
 public:
  // `parts`: the checkpoint's, stacked up by rows, all in few bits; `layout`: which of their rows
  // stands where.
  WeightPacker(const std::vector<TensorView>& parts, const TileLayout& layout,
               const DeviceMatrix& to);

  // The units of one tile, matrix.ld / kUnitK of them; `scales`: for kInt8, one for each of the
  // tile's outputs.
  void PackTile(int tile, std::span<std::byte> units, std::span<float> scales);

 private:
  const std::vector<TensorView>& parts_;
  TileLayout layout_;
  DeviceMatrix to_;
  std::vector<uint8_t> codes_;
  std::vector<float> scales_, biases_;
};

}  // namespace loopspec::cuda

// Tensor maps of the weight matrices, for TMA on Hopper and later GPUs.
#pragma once

#include <vector>

#include "backends/cuda/host/cuda_memory.h"
#include "backends/cuda/host/device_model.h"

namespace loopspec::cuda {

struct alignas(64) TensorMap {
  std::byte opaque[128];
};

// One map per matrix, on the device: boxes of a tile by a block of k. Empty on GPUs without TMA.
// Throws Error when the driver refuses one.
DeviceArray<TensorMap> MakeTensorMaps(const std::vector<DeviceMatrix>& matrices, int device);

// Maps of the same matrices for kernels of single operations, [matrix][box]: boxes of kWideBoxes
// rows by kWideStageK elements (program/wide_work.h).
DeviceArray<TensorMap> MakeWideMaps(const std::vector<DeviceMatrix>& matrices);

// An array [rows, columns] with `ld` elements from row to row, as boxes of box_rows x box_columns
// whose 16-byte parts are swizzled (128 bytes: box_columns is at most 64). Throws Error when the
// driver refuses it.
TensorMap MakeBoxMap(const bf16* data, int64_t columns, int64_t rows, int64_t ld, int box_columns,
                     int box_rows);

// A matrix of few bits as an array [tiles][units of a tile][words], in boxes of so many of both.
TensorMap MakeUnitMap(const DeviceMatrix& matrix, int tiles, int units);

}  // namespace loopspec::cuda

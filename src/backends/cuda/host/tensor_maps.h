// Tensor maps of the weight matrices, for TMA on Hopper and later GPUs.
#pragma once

#include <vector>

#include "backends/cuda/host/cuda_memory.h"
#include "backends/cuda/host/device_model.h"

namespace loopspec::cuda {

struct alignas(64) TensorMap {
  std::byte opaque[128];
};

// One map per matrix, on the device; empty on GPUs without TMA. Throws Error when the driver
// refuses one.
DeviceArray<TensorMap> MakeTensorMaps(const std::vector<DeviceMatrix>& matrices, int device);

}  // namespace loopspec::cuda

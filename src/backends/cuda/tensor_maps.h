// Descriptions of the weight matrices, and of the pages of keys and values, for the copy engine of
// Hopper and later GPUs.
#pragma once

#include <vector>

#include "backends/cuda/cuda_memory.h"
#include "backends/cuda/device_model.h"

namespace loopspec::cuda {

struct alignas(64) TensorMap {
  std::byte opaque[128];
};

// One map per matrix, on the device; empty on GPUs without the engine. Throws Error when the driver
// refuses one.
DeviceArray<TensorMap> MakeTensorMaps(const std::vector<DeviceMatrix>& matrices, int device);

// One map of all keys and values in pages, `vectors` of them, of which `split` are copied at once;
// empty where they cannot be copied so: without the engine, for other head sizes than multiples of
// 64, where there are more than its coordinates can name.
DeviceArray<TensorMap> MakePageMap(const bf16* pages, int64_t vectors, int head_stride, int split,
                                   int device);

}  // namespace loopspec::cuda

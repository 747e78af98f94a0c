// The state before the first recurrence, as the GPU's code makes it.
#pragma once

#include <vector>

#include "backends/cuda/device/start_state.h"

namespace loopspec::cuda {

// [positions][hidden], of positions `first` and those after it.
std::vector<float> StartStates(const StateParams& start, int first, int positions, int hidden);

}  // namespace loopspec::cuda

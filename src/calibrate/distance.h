// How far early depths are from the last one: agreement of the likeliest token and total variation
// distance between distributions, over the positions of a text.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "backends/backend.h"

namespace loopspec {

// Sums over positions, by depth; the last depth is not in it.
struct DistanceSums {
  std::vector<int> depths;
  std::vector<double> agreed;    // positions whose likeliest token is that of the last depth
  std::vector<double> distance;  // total variation distance of the filtered distributions
  int64_t positions = 0;

  void Add(const DistanceSums& other);
};

// Reads `tokens` as one text, without drafting, and compares the readout depths of the backend with
// the last one at positions from `first` on. `sampling` shapes the distributions; greedy ones are
// all on one token. The backend must be idle and hold the text. Stops early when `interrupted`.
DistanceSums MeasureDistance(Backend& backend, std::span<const int32_t> tokens, size_t first,
                             const SamplingParams& sampling,
                             const std::function<bool()>& interrupted);

}  // namespace loopspec

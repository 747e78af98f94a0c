#include "calibrate/distance.h"

#include "base/error.h"
#include "calibrate/depth_readouts.h"

namespace loopspec {
void DistanceSums::Add(const DistanceSums& other) {
  if (depths.empty()) {
    *this = other;
    return;
  }
  if (depths != other.depths) Fail("distances at different depths cannot be added up");
  for (size_t i = 0; i < depths.size(); ++i) {
    agreed[i] += other.agreed[i];
    distance[i] += other.distance[i];
  }
  positions += other.positions;
}

DistanceSums MeasureDistance(Backend& backend, std::span<const int32_t> tokens, size_t first,
                             const SamplingParams& sampling,
                             const std::function<bool()>& interrupted) {
  DistanceSums sums;
  const std::vector<int>& readouts = backend.options().readout_depths;
  sums.depths.assign(readouts.begin(), readouts.end() - 1);
  sums.agreed.resize(sums.depths.size());
  sums.distance.resize(sums.depths.size());
  ThreadPool team(backend.options().threads);
  ReadOutText(backend, team, tokens, first, sampling, [&](size_t, const PositionReadouts& at) {
    for (size_t i = 0; i < sums.depths.size(); ++i) {
      sums.agreed[i] += at.choices[i] == at.choices.back() ? 1 : 0;
      sums.distance[i] += at.distances[i];
    }
    ++sums.positions;
    return !interrupted();
  });
  return sums;
}

}  // namespace loopspec

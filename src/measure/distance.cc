#include "measure/distance.h"

#include "base/error.h"
#include "measure/depth_readouts.h"

namespace loopspec::measure {
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
  const int last = static_cast<int>(readouts.size());
  ReadOutText(backend, tokens, first, sampling, [&](size_t, const PositionReadouts& at) {
    for (int i = 1; i < last; ++i) {
      const size_t depth = static_cast<size_t>(i) - 1;
      sums.agreed[depth] += at.choices[depth] == at.choices.back() ? 1 : 0;
      sums.distance[depth] += TotalVariation(at.At(i), at.At(last));
    }
    ++sums.positions;
    return !interrupted();
  });
  return sums;
}

}  // namespace loopspec::measure

// What every readout depth of a backend says at the positions of a text that is read, not written:
// the measurement behind calibration, the experiments on distance, and synthetic twins.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "backends/backend.h"
#include "base/thread_pool.h"

namespace loopspec {

// Readouts of one position at the backend's readout depths, the last of which is R: the target.
struct PositionReadouts {
  std::vector<int32_t> choices;  // by readout: the likeliest token
  // [readouts][support]: probabilities under the sampling that is looked at, over the tokens that
  // any of the readouts gives some. Greedy ones are all on one token.
  std::vector<double> probabilities;
  size_t support = 0;
  std::vector<double> distances;  // by readout: total variation distance to the target

  // `readout` counts from 1, so that it is the depth where every depth is read out.
  std::span<const double> At(int readout) const {
    return {probabilities.data() + static_cast<size_t>(readout - 1) * support, support};
  }
};

// Called for each position in turn; false ends the reading.
using TakeReadouts = std::function<bool(size_t position, const PositionReadouts& readouts)>;

// Reads `tokens` as one text and reads out the positions from `first` on. `sampling` shapes the
// distributions; the members of `team` work on a position each. The backend must be idle and hold
// the text. Throws Error when the logits are no numbers.
void ReadOutText(Backend& backend, ThreadPool& team, std::span<const int32_t> tokens, size_t first,
                 const SamplingParams& sampling, const TakeReadouts& take);

// Half the sum of absolute differences.
double TotalVariation(std::span<const double> p, std::span<const double> q);
double TotalVariation(std::span<const float> p, std::span<const float> q);

}  // namespace loopspec

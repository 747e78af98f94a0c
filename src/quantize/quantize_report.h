// What quantization changed in a model: perplexity, distance, agreement by depth.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "backends/backend.h"

namespace loopspec {

// What quantization changed, over texts read at the readout depths of the backends.
struct QuantizeReport {
  int64_t positions = 0;
  double source_perplexity = 0, perplexity = 0;  // of the texts' own next tokens, at the last depth
  double distance = 0;      // mean total variation distance from the source, at the last depth
  double agreed = 0;        // share of positions with the source's likeliest token
  std::vector<int> depths;  // proposal depths
  std::vector<double> source_accepted, accepted;  // share whose likeliest token is the last depth's
  // R over the mean depth at which a token of greedy decoding is accepted: the first proposal depth
  // with the last depth's likeliest token, else R.
  double source_gamma = 0, gamma = 0;
};
QuantizeReport CompareModels(Backend& source, Backend& quantized,
                             const std::vector<std::vector<int32_t>>& texts,
                             const std::function<void(int64_t done, int64_t total)>& progress);

}  // namespace loopspec

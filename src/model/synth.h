// Synthetic twins of the released models: checkpoints of their size and format with seeded random
// weights, for speed work where the real weights cannot be had. They say nothing; config.json marks
// them with "loopspec_synthetic": true.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace loopspec {

struct SynthRequest {
  std::string like;        // one of SynthNames()
  double agreement = 0.9;  // how often the first drafts should agree with the last depth, about
  int layers = 0;          // blocks of B; 0: as many as the released model has
  uint64_t seed = 0;
  std::filesystem::path
      output;  // a folder; made where it is missing, refused where it holds a model
};

struct SynthResult {
  int files = 0;
  int tensors = 0;
  uint64_t bytes = 0;
};

std::vector<std::string> SynthNames();

// Writes config.json and the weights, a piece at a time: memory does not grow with the model.
// Throws Error.
SynthResult WriteSynthetic(const SynthRequest& request);

}  // namespace loopspec

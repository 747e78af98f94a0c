// How a model wants to be sampled, by its generation_config.json.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sampling/params.h"

namespace loopspec {

struct GenerationDefaults {
  bool from_file = false;  // else there was none, and everything is greedy
  bool chosen = false;     // the file says whether to sample
  SamplingParams sampling;
  std::vector<std::string> ignored;  // keys that ask for something that is not done here
};

// As Hugging Face reads the file: without do_sample decoding is greedy whatever the rest says; with
// it, temperature 1, top-k 50 and top-p 1 unless given. Throws Error for a value of the wrong type
// or out of range.
GenerationDefaults ReadGenerationDefaults(const std::filesystem::path& folder);

}  // namespace loopspec

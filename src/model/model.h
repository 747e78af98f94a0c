// A loaded model: its facts, its file and its weights. The weights point into the mapped
// checkpoint.
#pragma once

#include <filesystem>

#include "model/model_spec.h"
#include "model/weights.h"
#include "tensor/safetensors.h"

namespace loopspec {

struct Model {
  ModelSpec spec;
  Checkpoint checkpoint;
  ModelWeights weights;

  // A folder, or a GGUF file. Throws Error. `recurrence` > 0 replaces the config's R.
  static Model Load(const std::filesystem::path& folder, const ConfigOverrides& overrides = {},
                    int recurrence = 0);
};

}  // namespace loopspec

// The state before the first recurrence, by what a GPU is told of it.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/host_device.h"
#include "model/hashed_state.h"
#include "model/initial_state.h"
#include "model/model_spec.h"

namespace loopspec::cuda {

struct StateParams {
  StateStart kind;
  double scale;      // kNormal
  uint64_t seed;     // kNormal
  float hash_scale;  // kHashed
};

inline StateParams StartOf(const ModelSpec& spec, uint64_t seed) {
  return {spec.start, spec.state_std * spec.embed_scale, seed,
          static_cast<float>(std::sqrt(2.0 / spec.hidden))};
}

// Element i of it, where the state does not start from P's output.
LOOPSPEC_HD inline float StartValue(const StateParams& start, int position, int i) {
  if (start.kind == StateStart::kHashed)
    return HashedState(static_cast<uint32_t>(position), static_cast<uint32_t>(i), start.hash_scale);
  return InitialState(start.seed, static_cast<uint32_t>(position), static_cast<uint32_t>(i),
                      start.scale);
}

}  // namespace loopspec::cuda

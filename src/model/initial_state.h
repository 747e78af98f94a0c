// Raven's initial state s^(0): a normal truncated at three standard deviations, keyed by (state
// seed, absolute position), so that it does not depend on the request, the batch or what was
// decoded before. Host and device code.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/host_device.h"
#include "base/philox.h"

namespace loopspec {

// Standard normal cut at |z| <= 3, by Box-Muller with rejection (0.27 % are redrawn).
LOOPSPEC_HD inline double TruncatedNormal(uint64_t seed, uint32_t position, uint32_t element) {
  for (uint32_t attempt = 0;; ++attempt) {
    const PhiloxBlock block = Philox4x32(
        {{position, attempt, static_cast<uint32_t>(DrawPurpose::kInitialState), element}}, seed);
    const double u = UniformFrom(block.v[0], block.v[1]);
    const double angle = 6.283185307179586 * UniformFrom(block.v[2], block.v[3]);
    const double z = sqrt(-2.0 * log(1.0 - u)) * cos(angle);
    if (z >= -3.0 && z <= 3.0) return z;
  }
}

// Element `element` of s^(0); `scale` is init_values.std times embed_scale.
LOOPSPEC_HD inline float InitialState(uint64_t seed, uint32_t position, uint32_t element,
                                      double scale) {
  return scale > 0.0 ? static_cast<float>(scale * TruncatedNormal(seed, position, element)) : 0.0f;
}

}  // namespace loopspec

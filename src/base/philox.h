// Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011). A draw is a pure function of its key and counter: no stream, no order of
// calls, the same on host and device.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace loopspec {

struct PhiloxBlock {
  uint32_t v[4];
};

LOOPSPEC_HD inline PhiloxBlock Philox4x32(PhiloxBlock counter, uint64_t key) {
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter.v[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter.v[2];
    counter = {{static_cast<uint32_t>(p1 >> 32) ^ counter.v[1] ^ k0, static_cast<uint32_t>(p1),
                static_cast<uint32_t>(p0 >> 32) ^ counter.v[3] ^ k1, static_cast<uint32_t>(p0)}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

// Uniform in [0, 1) with 53 bits, from two words.
LOOPSPEC_HD inline double UniformFrom(uint32_t hi, uint32_t lo) {
  return static_cast<double>((uint64_t{hi} << 32 | lo) >> 11) * 0x1.0p-53;
}

// What a draw is for. Part of the counter, so that no two uses ever share a number.
enum class DrawPurpose : uint32_t {
  kSample = 0,               // plain sampling and the cascade's fallback
  kDraft = 1,                // proposal i draws with kDraft + i * 2 ...
  kAccept = 2,               // ... and is accepted with kAccept + i * 2
  kGumbel = 1u << 30,        // the coupled sampler's noise, one per token id
  kInitialState = 1u << 31,  // Raven's s^(0), one per hidden element
};

// The draw for (seed, choice, absolute position, purpose): two independent uniforms per key; most
// uses need one.
struct DrawKey {
  uint64_t seed = 0;      // the request's seed
  uint32_t choice = 0;    // index among the request's parallel choices
  uint32_t position = 0;  // absolute position of the token being decided
};

LOOPSPEC_HD inline double Uniform(const DrawKey& key, uint32_t purpose, uint32_t index = 0) {
  const PhiloxBlock out = Philox4x32({{key.position, key.choice, purpose, index}}, key.seed);
  return UniformFrom(out.v[0], out.v[1]);
}

LOOPSPEC_HD inline uint32_t DraftPurpose(int proposal) {
  return static_cast<uint32_t>(DrawPurpose::kDraft) + 2 * static_cast<uint32_t>(proposal);
}
LOOPSPEC_HD inline uint32_t AcceptPurpose(int proposal) {
  return static_cast<uint32_t>(DrawPurpose::kAccept) + 2 * static_cast<uint32_t>(proposal);
}

}  // namespace loopspec

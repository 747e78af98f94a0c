// A seed for those who name none.
#pragma once

#include <cstdint>
#include <random>

namespace loopspec {

// 53 bits, so that a reader that takes numbers for doubles can give it back.
inline uint64_t RandomSeed() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) >> 11;
}

}  // namespace loopspec

// exp for weights of tokens: plain arithmetic that compilers turn into vector code, the same result
// on every machine.
#pragma once

#include <bit>
#include <cstdint>

namespace loopspec {

// e^x for x <= 0, relative error below 3e-7; 0 where the result would be below the smallest normal
// float.
inline float ExpNonPositive(float x) {
  // e^x = 2^n * e^r with |r| <= ln(2) / 2; adding 1.5 * 2^23 rounds to the nearest whole number.
  constexpr float kLog2e = 1.44269504f;
  constexpr float kLn2High = 0.693145752f, kLn2Low = 1.42860677e-6f;
  constexpr float kRound = 12582912.0f;
  const float clamped = x < -87.0f ? -87.0f : x;
  const float shifted = clamped * kLog2e + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  // Taylor up to r^7: the next term is below 6e-9 at |r| = 0.35.
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const uint32_t exponent =
      (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRound) + 127u) << 23;
  const float value = p * std::bit_cast<float>(exponent);
  return x < -87.0f ? 0.0f : value;
}

}  // namespace loopspec

// Element types of checkpoints and buffers, and the conversions between them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace loopspec {

enum class DType { kF32, kBF16, kF16, kI32, kI64, kU8, kI8, kU32 };

size_t SizeOf(DType type);
std::string_view NameOf(DType type);  // as safetensors writes it: "F32", "BF16", ...
std::optional<DType> DTypeFromName(std::string_view name);

// bfloat16 is the upper half of a float32.
inline float BF16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

// Round to nearest, ties to even; NaN stays NaN.
inline uint16_t FloatToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

float F16ToFloat(uint16_t bits);

// Element i of `data` as a float; for set-up code and references, not for kernels.
float LoadElement(const void* data, DType type, int64_t i);

}  // namespace loopspec

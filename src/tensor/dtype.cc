#include "tensor/dtype.h"

#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace loopspec {
namespace {

struct Entry {
  DType type;
  size_t size;
  std::string_view name;
};
constexpr std::array<Entry, 8> kTypes = {{{DType::kF32, 4, "F32"},
                                          {DType::kBF16, 2, "BF16"},
                                          {DType::kF16, 2, "F16"},
                                          {DType::kI32, 4, "I32"},
                                          {DType::kI64, 8, "I64"},
                                          {DType::kU8, 1, "U8"},
                                          {DType::kI8, 1, "I8"},
                                          {DType::kU32, 4, "U32"}}};

const Entry& Find(DType type) {
  for (const Entry& entry : kTypes) {
    if (entry.type == type) return entry;
  }
  LOOPSPEC_CHECK(false);
}

}  // namespace

size_t SizeOf(DType type) {
  return Find(type).size;
}
std::string_view NameOf(DType type) {
  return Find(type).name;
}

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const Entry& entry : kTypes) {
    if (entry.name == name) return entry.type;
  }
  return std::nullopt;
}

float F16ToFloat(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = bits >> 10 & 0x1Fu;
  const uint32_t mantissa = bits & 0x3FFu;
  if (exponent == 0) {  // zero and subnormals
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | mantissa << 13);
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

float LoadElement(const void* data, DType type, int64_t i) {
  const auto* bytes = static_cast<const std::byte*>(data) + i * static_cast<int64_t>(SizeOf(type));
  if (type == DType::kF32) {
    float value;
    std::memcpy(&value, bytes, 4);
    return value;
  }
  uint16_t half;
  LOOPSPEC_CHECK(type == DType::kBF16 || type == DType::kF16);
  std::memcpy(&half, bytes, 2);
  return type == DType::kBF16 ? BF16ToFloat(half) : F16ToFloat(half);
}

}  // namespace loopspec

#include "tensor/quantized.h"

#include <cmath>
#include <cstring>

#include "base/check.h"

namespace loopspec {
namespace {

using Layout = QuantizedTensor::Layout;

uint8_t Byte(const std::byte* at) {
  return static_cast<uint8_t>(*at);
}
float Half(const std::byte* at) {
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  return F16ToFloat(bits);
}

// Q8_0: f16 scale, 32 int8.
void DecodeQ8_0(const std::byte* block, uint8_t* codes, float* scale) {
  *scale = Half(block);
  for (int i = 0; i < 32; ++i) codes[i] = Byte(block + 2 + i) ^ 0x80u;
}

// Q4_0: f16 scale, 16 bytes whose low halves are the first 16 codes and high halves the others.
void DecodeQ4_0(const std::byte* block, uint8_t* codes, float* scale) {
  *scale = Half(block);
  for (int i = 0; i < 16; ++i) {
    codes[i] = Byte(block + 2 + i) & 15u;
    codes[16 + i] = Byte(block + 2 + i) >> 4;
  }
}

// Q4_K: 256 elements in 8 groups: f16 d and dmin, 12 bytes with six bits of scale and of minimum
// for each group, then 128 bytes of which each 32 hold two groups, the earlier one low.
void DecodeQ4K(const std::byte* block, uint8_t* codes, float* scales, float* biases) {
  const float d = Half(block), dmin = Half(block + 2);
  const std::byte* packed = block + 4;
  for (int g = 0; g < 8; ++g) {
    unsigned scale, minimum;
    if (g < 4) {
      scale = Byte(packed + g) & 63u;
      minimum = Byte(packed + g + 4) & 63u;
    } else {
      scale = (Byte(packed + g + 4) & 15u) | (Byte(packed + g - 4) >> 6 << 4);
      minimum = static_cast<unsigned>(Byte(packed + g + 4) >> 4) | (Byte(packed + g) >> 6 << 4);
    }
    scales[g] = d * static_cast<float>(scale);
    biases[g] = -(dmin * static_cast<float>(minimum));
    const std::byte* from = block + 16 + g / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      codes[32 * g + i] = static_cast<uint8_t>(Byte(from + i) >> (g % 2 * 4) & 15);
    }
  }
}

// Q6_K: 256 elements in 16 groups: 128 bytes of low halves, 64 of two more bits, 16 int8 scales,
// f16 d.
void DecodeQ6K(const std::byte* block, uint8_t* codes, float* scales) {
  const float d = Half(block + 208);
  for (int g = 0; g < 16; ++g)
    scales[g] = d * static_cast<float>(static_cast<int8_t>(Byte(block + 192 + g)));
  for (int half = 0; half < 2; ++half) {
    const std::byte* low = block + 64 * half;
    const std::byte* high = block + 128 + 32 * half;
    uint8_t* to = codes + 128 * half;
    for (int i = 0; i < 32; ++i) {
      const unsigned bits = Byte(high + i);
      to[i] = static_cast<uint8_t>((Byte(low + i) & 15u) | (bits & 3u) << 4);
      to[32 + i] = static_cast<uint8_t>((Byte(low + 32 + i) & 15u) | (bits >> 2 & 3u) << 4);
      to[64 + i] = static_cast<uint8_t>(Byte(low + i) >> 4 | (bits >> 4 & 3u) << 4);
      to[96 + i] = static_cast<uint8_t>(Byte(low + 32 + i) >> 4 | (bits >> 6 & 3u) << 4);
    }
  }
}

}  // namespace

BlockSize BlockOf(Layout layout) {
  switch (layout) {
    case Layout::kQ8_0:
      return {34, 32};
    case Layout::kQ4_0:
      return {18, 32};
    case Layout::kQ4_K:
      return {144, 256};
    case Layout::kQ6_K:
      return {210, 256};
    default:
      return {0, 0};
  }
}

int QuantizedTensor::center() const {
  switch (layout) {
    case Layout::kSigned8:
    case Layout::kQ8_0:
      return 128;
    case Layout::kQ4_0:
      return 8;
    case Layout::kQ6_K:
      return 32;
    case Layout::kNibbles:
      return biases.data == nullptr ? 8 : 0;
    case Layout::kBytes:
      return biases.data == nullptr ? 128 : 0;
    default:
      return 0;
  }
}

std::string_view QuantizedTensor::name() const {
  switch (layout) {
    case Layout::kQ8_0:
      return "Q8_0";
    case Layout::kQ4_0:
      return "Q4_0";
    case Layout::kQ4_K:
      return "Q4_K";
    case Layout::kQ6_K:
      return "Q6_K";
    case Layout::kNibbles:
      return "int4";
    default:
      return "int8";
  }
}

int64_t QuantizedTensor::StoredRow(int64_t row) const {
  if (interleaved_heads == 0) return row;
  const int64_t d = interleaved_heads, j = row % d;
  return row - j + (j < d / 2 ? 2 * j : 2 * (j - d / 2) + 1);
}

int QuantizedTensor::ZeroPoint(int64_t row, int64_t g) const {
  if (zeros == nullptr) return 0;
  if (layout != Layout::kSigned8) {
    const int64_t per_word = 32 / bits();
    uint32_t word;
    std::memcpy(&word, zeros + (row / per_word * groups() + g) * 4, 4);
    const auto code = static_cast<int>(word >> (row % per_word * bits()) & ((1u << bits()) - 1));
    return code - center();
  }
  return static_cast<int8_t>(Byte(zeros + row * groups() + g));
}

void QuantizedTensor::DecodeRow(int64_t row, uint8_t* codes_out, float* scales_out,
                                float* biases_out) const {
  LOOPSPEC_CHECK(row >= 0 && row < rows);
  row = StoredRow(row);
  const BlockSize block = BlockOf(layout);
  if (block.bytes > 0) {
    const std::byte* at = codes + row * (columns / block.elements) * block.bytes;
    const int64_t step = block.elements / group;  // groups of a block
    for (int64_t i = 0; i < columns / block.elements; ++i, at += block.bytes) {
      uint8_t* to = codes_out + i * block.elements;
      if (layout == Layout::kQ8_0) DecodeQ8_0(at, to, scales_out + i);
      if (layout == Layout::kQ4_0) DecodeQ4_0(at, to, scales_out + i);
      if (layout == Layout::kQ4_K) DecodeQ4K(at, to, scales_out + i * step, biases_out + i * step);
      if (layout == Layout::kQ6_K) DecodeQ6K(at, to, scales_out + i * step);
    }
    return;
  }
  if (layout == Layout::kNibbles) {
    const std::byte* at = codes + row * columns / 2;
    for (int64_t i = 0; i < columns; i += 2) {
      codes_out[i] = Byte(at + i / 2) & 15u;
      codes_out[i + 1] = Byte(at + i / 2) >> 4;
    }
  } else {
    const uint8_t flip = layout == Layout::kSigned8 ? 0x80 : 0;
    for (int64_t i = 0; i < columns; ++i) codes_out[i] = Byte(codes + row * columns + i) ^ flip;
  }
  for (int64_t g = 0; g < groups(); ++g) {
    scales_out[g] = scales.At(row * groups() + g);
    if (biases.data != nullptr) biases_out[g] = biases.At(row * groups() + g);
    if (zeros != nullptr) biases_out[g] = -scales_out[g] * static_cast<float>(ZeroPoint(row, g));
  }
}

void QuantizedTensor::DequantizeRow(int64_t row, float* out, Scratch& scratch) const {
  scratch.codes.resize(static_cast<size_t>(columns));
  scratch.scales.resize(static_cast<size_t>(groups()));
  scratch.biases.assign(static_cast<size_t>(groups()), 0.0f);
  DecodeRow(row, scratch.codes.data(), scratch.scales.data(), scratch.biases.data());
  const int middle = center();
  for (int64_t g = 0; g < groups(); ++g) {
    const float scale = scratch.scales[static_cast<size_t>(g)];
    const float bias = scratch.biases[static_cast<size_t>(g)];
    // A zero point belongs to the code: with it the product is rounded once.
    const int zero = middle + ZeroPoint(StoredRow(row), g);
    for (int64_t i = g * group; i < (g + 1) * group; ++i) {
      const int code = scratch.codes[static_cast<size_t>(i)];
      out[i] = zeros != nullptr ? scale * static_cast<float>(code - zero)
                                : std::fma(scale, static_cast<float>(code - middle), bias);
    }
  }
}

}  // namespace loopspec

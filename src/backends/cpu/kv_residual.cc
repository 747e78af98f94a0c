#include "backends/cpu/kv_residual.h"

#include <algorithm>
#include <cstring>

#include "backends/cpu/kv_int8.h"
#include "kv/key_plan.h"
#include "tensor/dtype.h"

namespace loopspec::cpu {
namespace {

constexpr uint32_t kEachByte = 0x01010101;

// Numbers i to i + 3, in the bytes of `four`; i is a multiple of 4.
void PutFour(std::byte* packed, int64_t i, int bits, uint32_t four) {
  packed += i / kPackedNumbers * 8 * bits;
  const auto at = static_cast<int>(i % kPackedNumbers);
  ForParts(bits, [&](int width, int bit) {
    const int shift = width * (at / (8 * width));
    const uint32_t mask = kEachByte * ((1u << width) - 1);
    uint32_t word;
    std::memcpy(&word, packed + at % (8 * width), 4);
    word = (word & ~(mask << shift)) | ((four >> bit & mask) << shift);
    std::memcpy(packed + at % (8 * width), &word, 4);
    packed += 8 * width;
  });
}

void PutOne(std::byte* packed, int64_t i, int bits, uint32_t number) {
  packed += i / kPackedNumbers * 8 * bits;
  const auto at = static_cast<int>(i % kPackedNumbers);
  ForParts(bits, [&](int width, int bit) {
    const int shift = width * (at / (8 * width));
    const uint32_t mask = (1u << width) - 1;
    std::byte& byte = packed[at % (8 * width)];
    byte = static_cast<std::byte>((static_cast<uint32_t>(byte) & ~(mask << shift)) |
                                  ((number >> bit & mask) << shift));
    packed += 8 * width;
  });
}

// A part of a value's numbers, where 64 that are packed together are of kDims whole dimensions:
// each byte is of one position.
template <int kWidth>
void PutValuePart(std::byte* packed, int bits, int bit, const uint8_t* numbers, int d) {
  constexpr int kDims = kPackedNumbers / kValueBlock, kRun = kDims * kWidth / 8;
  constexpr uint32_t kMask = (1u << kWidth) - 1;
  for (int i = 0; i < d; i += kDims, packed += 8 * bits) {
    for (int j = 0; j < kRun; ++j) {
      uint32_t byte = 0;
      for (int group = 0; group < 8 / kWidth; ++group)
        byte |= (uint32_t{numbers[i + group * kRun + j]} >> bit & kMask) << (kWidth * group);
      packed[j * kValueBlock] = static_cast<std::byte>(byte);
    }
  }
}

void PutValue(std::byte* packed, int position, int bits, const uint8_t* numbers, int d) {
  if (d % 16 != 0) {
    for (int i = 0; i < d; ++i)
      PutOne(packed, Int8PageHead::ValueAt(position, i, d), bits, numbers[i]);
    return;
  }
  packed += Int8PageHead::ValueAt(position, 0, d) / kPackedNumbers * 8 * bits;
  packed += position % kValueBlock;
  ForParts(bits, [&](int width, int bit) {
    if (width == 8) PutValuePart<8>(packed, bits, bit, numbers, d);
    if (width == 4) PutValuePart<4>(packed, bits, bit, numbers, d);
    if (width == 2) PutValuePart<2>(packed, bits, bit, numbers, d);
    if (width == 1) PutValuePart<1>(packed, bits, bit, numbers, d);
    packed += 8 * width;
  });
}

// Writes levels plus 2^(bits - 1); returns their scale as bf16.
uint16_t RoundHead(const std::byte* own, const std::byte* last, float own_scale, float last_scale,
                   int bits, int d, uint8_t* numbers) {
  float x[kMostResidualDims] = {}, from[kMostResidualDims] = {};
  int8_t levels[kMostResidualDims];
  for (int i = 0; i < d; ++i) {
    x[i] = static_cast<float>(static_cast<int>(own[i]) - 128) * own_scale;
    from[i] = static_cast<float>(static_cast<int>(last[i]) - 128) * last_scale;
  }
  const float scale = RoundResidual(bits, from, x, d, levels);
  for (int i = 0; i < d; ++i) numbers[i] = static_cast<uint8_t>(levels[i] + (1 << (bits - 1)));
  return FloatToBF16(scale);
}

// Each line is a few vectors' work.
template <int kWidth>
void AddPart(const uint8_t* from, int bit, uint8_t* to) {
  constexpr int kBytes = 8 * kWidth, kMask = (1 << kWidth) - 1;
  for (int group = 0; group < 8 / kWidth; ++group) {
    for (int i = 0; i < kBytes; ++i) {
      to[group * kBytes + i] |= static_cast<uint8_t>((from[i] >> (kWidth * group) & kMask) << bit);
    }
  }
}

}  // namespace

void StoreResidual(const std::byte* own, const std::byte* last, int bits, int d,
                   std::byte* page_head, int position) {
  float own_scales[2], last_scales[2];  // of the key and of the value
  std::memcpy(own_scales, own + 2 * d, sizeof(own_scales));
  std::memcpy(last_scales, last + 2 * d, sizeof(last_scales));
  uint8_t numbers[kMostResidualDims];
  std::byte* values = page_head + ResidualPageHead::NumberBytes(bits, d);
  std::byte* scales = values + ResidualPageHead::NumberBytes(bits, d) + 2 * position;

  const uint16_t key_scale = RoundHead(own, last, own_scales[0], last_scales[0], bits, d, numbers);
  for (int i = 0; i < d; i += 4) {
    uint32_t four;
    std::memcpy(&four, numbers + i, 4);
    PutFour(page_head, Int8PageHead::KeyAt(position, i, d), bits, four);
  }
  std::memcpy(scales, &key_scale, 2);

  const uint16_t value_scale =
      RoundHead(own + d, last + d, own_scales[1], last_scales[1], bits, d, numbers);
  PutValue(values, position, bits, numbers, d);
  std::memcpy(scales + 2 * kPageSize, &value_scale, 2);
}

void UnpackResiduals(const std::byte* packed, int bits, int64_t count, std::byte* out) {
  const auto* from = reinterpret_cast<const uint8_t*>(packed);
  auto* to = reinterpret_cast<uint8_t*>(out);
  for (int64_t at = 0; at < count; at += kPackedNumbers, to += kPackedNumbers) {
    std::fill_n(to, kPackedNumbers, uint8_t{0});
    ForParts(bits, [&](int width, int bit) {
      if (width == 8) AddPart<8>(from, bit, to);
      if (width == 4) AddPart<4>(from, bit, to);
      if (width == 2) AddPart<2>(from, bit, to);
      if (width == 1) AddPart<1>(from, bit, to);
      from += 8 * width;
    });
  }
}

}  // namespace loopspec::cpu

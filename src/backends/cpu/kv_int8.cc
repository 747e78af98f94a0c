#include "backends/cpu/kv_int8.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace loopspec::cpu {
namespace {

// One head: x ~ scale * (stored - 128). NaN or infinity give a scale of NaN.
float RoundHead(const float* x, int d, std::byte* out) {
  int32_t top = 0;
  for (int i = 0; i < d; ++i) top = std::max(top, std::bit_cast<int32_t>(x[i]) & 0x7FFFFFFF);
  const float largest = std::bit_cast<float>(top);
  const bool finite = top < 0x7F800000;
  if (!finite || largest < 1e-30f) {
    std::fill_n(out, d, std::byte{128});
    return finite ? 0.0f : std::bit_cast<float>(0x7FC00000);
  }
  const float inverse = 127.0f / largest;
  for (int i = 0; i < d; ++i) {
    // Adding 1.5 * 2^23 rounds to the nearest integer, which then is in the low bits.
    const int32_t q = std::bit_cast<int32_t>(x[i] * inverse + 12582912.0f) - 0x4B400000;
    out[i] = static_cast<std::byte>(q + 128);
  }
  return largest / 127.0f;
}

}  // namespace

void StoreInt8(const float* key, const float* value, int d, std::byte* cell_head) {
  const float scales[2] = {RoundHead(key, d, cell_head), RoundHead(value, d, cell_head + d)};
  std::memcpy(cell_head + 2 * d, scales, sizeof(scales));
}

void CopyInt8ToPage(const std::byte* cell_head, int d, std::byte* page_head, int position) {
  const Int8PageHead page(page_head, d);
  for (int i = 0; i < d; i += 4)
    std::memcpy(page.keys + Int8PageHead::KeyAt(position, i, d), cell_head + i, 4);
  for (int i = 0; i < d; ++i) page.values[Int8PageHead::ValueAt(position, i, d)] = cell_head[d + i];
  std::memcpy(page.key_scales + position, cell_head + 2 * d, 4);
  std::memcpy(page.value_scales + position, cell_head + 2 * d + 4, 4);
}

void CopyInt8FromPage(const std::byte* page_head, int d, std::byte* cell_head, int position) {
  const Int8PageHead page(const_cast<std::byte*>(page_head), d);
  for (int i = 0; i < d; i += 4)
    std::memcpy(cell_head + i, page.keys + Int8PageHead::KeyAt(position, i, d), 4);
  for (int i = 0; i < d; ++i) cell_head[d + i] = page.values[Int8PageHead::ValueAt(position, i, d)];
  std::memcpy(cell_head + 2 * d, page.key_scales + position, 4);
  std::memcpy(cell_head + 2 * d + 4, page.value_scales + position, 4);
}

void StoreInt8InPage(const float* key, const float* value, int d, std::byte* page_head,
                     int position) {
  std::byte cell[kInt8MostCell];
  StoreInt8(key, value, d, cell);
  CopyInt8ToPage(cell, d, page_head, position);
}

}  // namespace loopspec::cpu

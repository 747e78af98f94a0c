// Keys and values as int8, each head of a position with a scale of its own. All numbers are stored
// plus 128, as VPDPBUSD wants its first operand.
//
// A head of a page lies so that integer dot products need no shuffling; B is how many numbers one
// of them adds up, 8 on Arm (SMMLA) and 4 elsewhere, and for keys of no multiple of 8:
//   keys [64 / 16][head_dim / B][16][B] | values [64 / B][head_dim][B] | key scales [64] | value
//   scales [64]
// A head of a cell: keys [head_dim] | values [head_dim] | key scale | value scale.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv/ledger.h"

namespace loopspec::cpu {

inline constexpr int kKeyBlock = 16;  // positions
#if defined(__aarch64__)
inline constexpr int kValueBlock = 8;  // positions
#else
inline constexpr int kValueBlock = 4;
#endif
inline constexpr int kInt8MostDims = 4096;                     // of a head
inline constexpr int kInt8MostCell = 2 * (kInt8MostDims + 4);  // bytes of a cell's head

// Where the parts of a page's head begin.
struct Int8PageHead {
  std::byte* keys;
  std::byte* values;
  float* key_scales;
  float* value_scales;

  Int8PageHead(std::byte* base, int d)
      : keys(base),
        values(base + int64_t{kPageSize} * d),
        key_scales(reinterpret_cast<float*>(base + int64_t{2 * kPageSize} * d)),
        value_scales(key_scales + kPageSize) {}

  static int KeyBytes(int d) { return d % kValueBlock == 0 ? kValueBlock : 4; }  // B of keys
  static int64_t KeyAt(int position, int i, int d) {
    const int b = KeyBytes(d);
    return int64_t{position / kKeyBlock} * kKeyBlock * d + i / b * (kKeyBlock * b) +
           position % kKeyBlock * b + i % b;
  }
  static int64_t ValueAt(int position, int i, int d) {
    return (int64_t{position / kValueBlock} * d + i) * kValueBlock + position % kValueBlock;
  }
};

// Rounds a key and a value and stores them as a head of a cell, or at a position of a page's head.
void StoreInt8(const float* key, const float* value, int d, std::byte* cell_head);
void StoreInt8InPage(const float* key, const float* value, int d, std::byte* page_head,
                     int position);
void CopyInt8ToPage(const std::byte* cell_head, int d, std::byte* page_head, int position);
void CopyInt8FromPage(const std::byte* page_head, int d, std::byte* cell_head, int position);

}  // namespace loopspec::cpu

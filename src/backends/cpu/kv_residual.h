// Keys and values as residuals of 2 to 8 bits against the last loop's int8 ones, by a plan of keys
// (kv/key_plan.h). They lie in pages alone, each page's head as
//   keys | values | key scales [64] | value scales [64], scales in bf16
// with numbers in the order of Int8PageHead, each plus 2^(bits - 1). 64 numbers take 8 x bits
// bytes: one part for each power of two in `bits`, the widest first and with a number's lowest
// bits. In a part of w bits number i is in byte i mod 8w, from bit w (i / 8w) on: so a vector of 64
// is a load, a shift and a mask for each part.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv/ledger.h"

namespace loopspec::cpu {

inline constexpr int kMostResidualDims = 512;  // of a head
inline constexpr int kPackedNumbers = 64;      // that are packed together

// Where the parts of a page's head begin.
struct ResidualPageHead {
  const std::byte* keys;
  const std::byte* values;
  const std::byte* key_scales;
  const std::byte* value_scales;

  ResidualPageHead(const std::byte* base, int bits, int d)
      : keys(base),
        values(base + NumberBytes(bits, d)),
        key_scales(values + NumberBytes(bits, d)),
        value_scales(key_scales + 2 * kPageSize) {}

  static int64_t NumberBytes(int bits, int d) { return int64_t{kPageSize} * d * bits / 8; }
};

// Calls body(width, bit) for the parts of numbers of `bits` bits: `width` bits from `bit` on.
template <class Body>
constexpr void ForParts(int bits, Body body) {
  int bit = 0;
  for (int width = 8; width > 0; width /= 2) {
    if ((bits & width) == 0) continue;
    body(width, bit);
    bit += width;
  }
}

// `own`, `last`: a head of a cell as StoreInt8 leaves it, of a loop and of the last one. Writes
// what the first has beyond the second to a position of a page's head.
void StoreResidual(const std::byte* own, const std::byte* last, int bits, int d,
                   std::byte* page_head, int position);

// `count` numbers, a multiple of 64, as they were before packing.
void UnpackResiduals(const std::byte* packed, int bits, int64_t count, std::byte* out);

}  // namespace loopspec::cpu

// Rows and codes of the SDOT kernels for weights of few bits (matmul_sdot.cc: large groups,
// matmul_sdot_groups.cc: small ones).
#pragma once

#include "backends/cpu/quantized_neon.h"

namespace loopspec::cpu {

struct DotDigits {
  static constexpr int kBytes = 1;
  // hi [padded] | lo [padded]
  static void Store(std::byte* digits, int64_t padded, int64_t at, const int16_t* hi,
                    const int16_t* lo) {
    auto* to = reinterpret_cast<int8_t*>(digits);
    for (int64_t i = 0; i < kQuantSumStep; ++i) {
      to[at + i] = static_cast<int8_t>(hi[i]);
      to[padded + at + i] = static_cast<int8_t>(lo[i]);
    }
  }
};
using DotRow = QuantizedRow<DotDigits>;
template <int kBits>
using DotCodes = NeonCodes<DotDigits, kBits>;

// Products with groups of at most kSmallGroup inputs: 128 * 255 * 128, the largest sum, is below
// 2^22 (NeonCodes::FromStart).
inline constexpr int64_t kSmallGroup = 128;
void SdotGroups(const MatMulCall& call);

}  // namespace loopspec::cpu

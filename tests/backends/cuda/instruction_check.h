// Hopper's matrix instruction of a warpgroup (wgmma) against that of a warp (mma.sync).
#pragma once

#include <cstdint>

namespace loopspec::cuda {

// What the operands are like.
enum class Operands {
  kNearOne,        // exponents fall off below one
  kFortyBinades,   // exponents from 2^-20 to 2^20
  kEightyBinades,  // and from 2^-40 to 2^40
  kTinyProducts,   // products near the smallest normal number and below it
  kAllSmall,       // any exponent up to one
  kSmallIntegers,  // ties and cancellations
  kZeros,          // of both signs
};
inline constexpr int kOperandKinds = 7;

struct InstructionCheck {
  uint64_t sums;       // that were compared
  uint64_t differing;  // in any bit
};

// Sums of sixteen instructions over 16 of k each, by wgmma of `rows` (32, 64, 88 or 128)
// columns and by mma.sync. `begin`: whether they are added to numbers, or begin with the first
// instruction. To be called on compute capability 9.0.
InstructionCheck CompareInstructions(Operands operands, int rows, bool begin, uint32_t seed);

}  // namespace loopspec::cuda

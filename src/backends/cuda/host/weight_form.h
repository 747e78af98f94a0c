// How a matrix of weights lies in device memory: as bf16, or as codes of few bits in the order in
// which the lanes of a warp feed the matrix instruction.
//
// Codes lie in units of 16 outputs (a tile) by 64 of k, four steps of the instruction. Of each step
// a lane has the eight codes that become its operand registers a0 ... a3, two to a register. Lane
// 4 g + t has outputs g (a0, a2) and g + 8 (a1, a3), and of the step's k 2 t and 2 t + 1 (a0, a1),
// 2 t + 8 and 2 t + 9 (a2, a3). A lane loads the codes of two steps by one instruction. Groups of
// int4 have a scale, and perhaps a bias, for every output and 32 of k: they follow the codes in the
// unit.
//
// Codes are not negative: int8 is stored with 128 added, as int4 is with 8. In registers a code
// becomes a bf16 number of kCodeStep times its value, which takes two instructions for two codes
// (device/packed_weights.cuh); scales are stored divided by kCodeStep, a power of two, to make up
// for it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace loopspec::cuda {

enum class WeightForm : int8_t {
  kBF16,
  kInt8,      // w = scale[output] * (code - 128); the scale is applied to sums
  kInt4,      // w = scale * (code - 8) for each group of 32, rounded to bf16
  kInt4Bias,  // w = scale * code + bias for each group of 32, rounded to bf16
};

inline constexpr int kUnitK = 64;        // elements of k of a unit
inline constexpr int kUnitOutputs = 16;  // and outputs: a tile's
inline constexpr int kUnitSteps = kUnitK / 16;
inline constexpr int kInt4Group = 32;  // elements of k that share a scale
inline constexpr int kInt8Center = 128, kInt4Center = 8;
inline constexpr float kCodeStep = 0x1p-6f;
// A unit's scales: for each group and g, those of outputs g and g + 8, as bf16. Biases likewise.
inline constexpr int kUnitScaleBytes = kUnitK / kInt4Group * kUnitOutputs * 2;

constexpr int UnitCodeBytes(WeightForm form) {
  return kUnitOutputs * kUnitK * (form == WeightForm::kInt8 ? 8 : 4) / 8;
}
constexpr int UnitBytes(WeightForm form) {
  switch (form) {
    case WeightForm::kBF16:
      return kUnitOutputs * kUnitK * 2;
    case WeightForm::kInt8:
      return UnitCodeBytes(form);
    case WeightForm::kInt4:
      return UnitCodeBytes(form) + kUnitScaleBytes;
    default:
      return UnitCodeBytes(form) + 2 * kUnitScaleBytes;
  }
}
constexpr bool IsInt4(WeightForm form) {
  return form == WeightForm::kInt4 || form == WeightForm::kInt4Bias;
}

// Where a code of output `row` (of 16) and element `k` (of 64) is: which step and lane, which of
// the lane's registers of the step, and which half of the register.
struct CodePlace {
  int step, lane, a, half;
};
constexpr CodePlace PlaceOfCode(int row, int k) {
  const int in_step = k % 16;
  return {k / 16, row % 8 * 4 + in_step % 8 / 2, row / 8 + in_step / 8 * 2, in_step % 2};
}
// Bytes from the start of a unit. A word of int8 has the first codes of two registers in its lower
// half, the second ones in its upper half.
constexpr int ByteOfInt8(int row, int k) {
  const CodePlace at = PlaceOfCode(row, k);
  return at.step / 2 * 512 + at.lane * 16 + at.step % 2 * 8 + at.a / 2 * 4 + at.half * 2 + at.a % 2;
}
// Of an int4 code, the half of the byte too. A lane's codes of a step are a word, whose halves of a
// byte j and j + 4 are register j's two.
struct NibblePlace {
  int byte;
  bool high;
};
constexpr NibblePlace NibbleOfInt4(int row, int k) {
  const CodePlace at = PlaceOfCode(row, k);
  const int nibble = at.a + at.half * 4;
  return {at.step / 2 * 256 + at.lane * 8 + at.step % 2 * 4 + nibble / 2, nibble % 2 != 0};
}
constexpr int ByteOfScale(int row, int group) {
  return UnitCodeBytes(WeightForm::kInt4) + ((group * 8 + row % 8) * 2 + row / 8) * 2;
}

}  // namespace loopspec::cuda

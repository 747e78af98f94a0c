// Weights of few bits on their way from shared memory into the matrix instruction: what a lane
// loads at a time, and how its codes become bf16 (host/weight_form.h).
//
// A bf16 number whose upper eight or nine bits are zero is denormal, or the first after the
// denormal ones: its bits are then its value in steps of 2^-133. So a code need only stand alone in
// the lower eight bits of a half register to be a number, and a multiplication by a power of two
// makes it a usual one, exactly; the same instruction subtracts the center.
#pragma once

#include "backends/cuda/device/instructions.cuh"
#include "backends/cuda/host/weight_form.h"

namespace loopspec::cuda {

// Two bf16 at once: a b + c, rounded once.
__device__ __forceinline__ uint32_t FmaPair(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// Pairs of bf16: what makes a code in bits 0 ... of a half kCodeStep times its value, and what in
// bits 4 to 7.
inline constexpr uint32_t kFromLowBits = 0x7F007F00, kFromHighBits = 0x7D007D00;  // 2^127, 2^123
static_assert(kCodeStep == 0x1p-133 * 0x1p127 && kCodeStep == 0x1p-129 * 0x1p123);
// -kInt8Center and -kInt4Center times kCodeStep: -2 and -0.125.
inline constexpr uint32_t kLessInt8Center = 0xC000C000, kLessInt4Center = 0xBE00BE00;
static_assert(kInt8Center * kCodeStep == 2.0f && kInt4Center * kCodeStep == 0.125f);

// What a lane loads at a time: its codes of kSteps steps, and their scales.
template <WeightForm kForm>
struct PackedWeights;

template <>
struct PackedWeights<WeightForm::kInt8> {
  static constexpr int kSteps = 2;
  uint4 codes;

  // `unit`: where the unit begins; `part`: which of its loads.
  __device__ __forceinline__ void Load(uint32_t unit, int part, bool) {
    codes = LoadShared16(unit + static_cast<uint32_t>(part * 512) + threadIdx.x % 32 * 16);
  }
  __device__ __forceinline__ uint32_t AnyBits() const {
    return codes.x | codes.y | codes.z | codes.w;
  }
  // (code - 128) kCodeStep, for the operand of one of the steps.
  __device__ __forceinline__ void Expand(int step, uint32_t (&a)[4]) const {
    Pairs(step == 0 ? codes.x : codes.z, a[0], a[1]);
    Pairs(step == 0 ? codes.y : codes.w, a[2], a[3]);
  }

 private:
  static __device__ __forceinline__ void Pairs(uint32_t word, uint32_t& even, uint32_t& odd) {
    even = FmaPair(word & 0x00FF00FF, kFromLowBits, kLessInt8Center);
    odd = FmaPair(__byte_perm(word, 0, 0x4341), kFromLowBits, kLessInt8Center);
  }
};

template <>
struct PackedWeights<WeightForm::kInt4> {
  static constexpr int kSteps = 2;
  static_assert(kSteps * 16 == kInt4Group);
  uint2 codes;
  uint32_t scales, biases;  // of the group: of output g, and in the upper half of g + 8
  uint32_t center;

  // Of kInt4Bias too: `biased`.
  __device__ __forceinline__ void Load(uint32_t unit, int part, bool biased) {
    const uint32_t lane = threadIdx.x % 32;
    codes = LoadShared8(unit + static_cast<uint32_t>(part * 256) + lane * 8);
    const uint32_t of_outputs =
        unit + UnitCodeBytes(WeightForm::kInt4) + static_cast<uint32_t>(part * 32) + lane / 4 * 4;
    scales = LoadShared4(of_outputs);
    biases = LoadShared4If(biased, of_outputs + kUnitScaleBytes);
    center = biased ? 0 : kLessInt4Center;
  }
  __device__ __forceinline__ uint32_t AnyBits() const {
    return codes.x | codes.y | scales | biases;
  }
  __device__ __forceinline__ void Expand(int step, uint32_t (&a)[4]) const {
    const uint32_t scale[2] = {__byte_perm(scales, 0, 0x1010), __byte_perm(scales, 0, 0x3232)};
    const uint32_t bias[2] = {__byte_perm(biases, 0, 0x1010), __byte_perm(biases, 0, 0x3232)};
    const uint32_t word = step == 0 ? codes.x : codes.y;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t bytes = word >> (j / 2 * 8);
      const uint32_t code = j % 2 == 0 ? FmaPair(bytes & 0x000F000F, kFromLowBits, center)
                                       : FmaPair(bytes & 0x00F000F0, kFromHighBits, center);
      a[j] = FmaPair(code, scale[j % 2], bias[j % 2]);
    }
  }
};

}  // namespace loopspec::cuda

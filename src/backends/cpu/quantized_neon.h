// What the kernels for weights of few bits have in common on Arm: codes of four bits to bytes, and
// what follows the sums. Each kernel is compiled for its own instruction set and instantiates this
// with a type of its own, so that none takes another's machine code.
#pragma once

#include <arm_neon.h>

#include "backends/cpu/quantized_row.h"

namespace loopspec::cpu {

template <class Owner, int kBits>
struct NeonCodes {
  // A 4-bit code becomes 16 times what it stands for, which takes one instruction; so do the sums,
  // until they are converted.
  static constexpr int kFraction = kBits == 4 ? 4 : 0;

  // The first and the second block of codes of two that lie together.
  static int8x16_t First(const uint8_t* codes) {
    const uint8x16_t bytes = vld1q_u8(codes);
    return vreinterpretq_s8_u8(kBits == 4 ? vshlq_n_u8(bytes, 4) : bytes);
  }
  static int8x16_t Second(const uint8_t* codes, int64_t block) {
    if constexpr (kBits == 8) return vreinterpretq_s8_u8(vld1q_u8(codes + block));
    return vreinterpretq_s8_u8(vandq_u8(vld1q_u8(codes), vdupq_n_u8(0xF0)));
  }

  // Sums of a small group begin at the bits of a float whose last bit is worth one, or a 16th where
  // codes are 16 times what they stand for. While they stay below 2^22 their bits are those of
  // that float plus the sum, and an exact subtraction converts them: SCVTF takes four times as
  // long on some processors.
  static int32x4_t Start() { return vdupq_n_s32(kFraction == 0 ? 0x4B400000 : 0x49400000); }
  static float32x4_t FromStart(int32x4_t sum) {
    return vsubq_f32(vreinterpretq_f32_s32(sum),
                     vdupq_n_f32(kFraction == 0 ? 12582912.0f : 786432.0f));
  }

  static float32x4_t ToFloat(int32x4_t sum) {
    if constexpr (kFraction == 0) return vcvtq_f32_s32(sum);
    return vcvtq_n_f32_s32(sum, 4);
  }
  // What a sum of digits adds to the sums, because codes are stored less their shift.
  static int32_t Correction(const QuantizedMatrix& m, int32_t digits) {
    return -m.shift * digits * (1 << kFraction);
  }

  // Four scales or biases.
  static float32x4_t Table(const std::byte* table, DType type, int64_t i) {
    if (type == DType::kF32) return vld1q_f32(reinterpret_cast<const float*>(table) + i);
    return vreinterpretq_f32_u32(
        vshll_n_u16(vld1_u16(reinterpret_cast<const uint16_t*>(table) + i), 16));
  }

  // Adds a group of inputs to four outputs.
  static float32x4_t AddGroup(float32x4_t out, int32x4_t hi, int32x4_t lo, float32x4_t scale) {
    return vfmaq_f32(out, scale, vfmaq_f32(ToFloat(lo), ToFloat(hi), vdupq_n_f32(256.0f)));
  }

  // Outputs [lane, lane + lanes) of 16, times the row's scale.
  static void Store(const float32x4_t* out, float scale, int lane, int lanes, float* to) {
    if (lanes == kQuantOutputs) {
      for (int q = 0; q < 4; ++q) vst1q_f32(to + 4 * q, vmulq_n_f32(out[q], scale));
      return;
    }
    float values[kQuantOutputs];
    for (int q = 0; q < 4; ++q) vst1q_f32(values + 4 * q, vmulq_n_f32(out[q], scale));
    std::copy_n(values + lane, lanes, to);
  }
};

}  // namespace loopspec::cpu

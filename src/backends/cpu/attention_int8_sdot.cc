// int8 keys and values by SDOT (Arm): what is stored plus 128 is made signed again, so the offsets
// are added to the sums.
#include "backends/cpu/ops.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#include <sys/auxv.h>

#include "backends/cpu/attention_int8_neon.h"

namespace loopspec::cpu {
namespace {

struct Sdot {
  static constexpr int kVectors = 8;  // with two sums each, 16 of 32 registers
  struct Digits {
    int8x16_t hi, lo;
  };
  struct Sums {
    int32x4_t hi, lo;  // [two][four numbers, the other four]
  };

  static Digits Load(const int8_t* hi, const int8_t* lo) { return {Twice(hi), Twice(lo)}; }
  static int8x16_t Twice(const int8_t* eight) {
    const int8x8_t digits = vld1_s8(eight);
    return vcombine_s8(digits, digits);
  }
  static Sums Zero() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
  static void Add(Sums& sums, uint8x16_t bytes, const Digits& digits) {
    const int8x16_t numbers = vreinterpretq_s8_u8(veorq_u8(bytes, vdupq_n_u8(0x80)));
    sums.hi = vdotq_s32(sums.hi, numbers, digits.hi);
    sums.lo = vdotq_s32(sums.lo, numbers, digits.lo);
  }
  static void Finish(const Sums& a, const Sums& b, int32_t hi_offset, int32_t lo_offset,
                     int32_t* hi, int32_t* lo) {
    vst1q_s32(hi, vaddq_s32(vpaddq_s32(a.hi, b.hi), vdupq_n_s32(hi_offset)));
    vst1q_s32(lo, vaddq_s32(vpaddq_s32(a.lo, b.lo), vdupq_n_s32(lo_offset)));
  }
};

}  // namespace

AttentionFunction SdotInt8Attention() {
  constexpr unsigned long kHwcapAsimdDp = 1UL << 20;
  return (getauxval(AT_HWCAP) & kHwcapAsimdDp) != 0 ? Int8AttentionKernel<NeonDotOps<Sdot>>::Attend
                                                    : nullptr;
}

}  // namespace loopspec::cpu

#else

namespace loopspec::cpu {
AttentionFunction SdotInt8Attention() {
  return nullptr;
}
}  // namespace loopspec::cpu

#endif

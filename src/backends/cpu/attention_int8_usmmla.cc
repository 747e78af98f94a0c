// int8 keys and values by USMMLA (Arm I8MM): two positions, or dimensions, by both digits at once,
// and the numbers as they are stored.
#include "backends/cpu/ops.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_MATMUL_INT8)
#include <sys/auxv.h>

#include "backends/cpu/attention_int8_neon.h"

namespace loopspec::cpu {
namespace {

struct Usmmla {
  static constexpr int kVectors = 16;  // of 32 registers
  using Digits = int8x16_t;
  using Sums = int32x4_t;  // [two][hi, lo]

  static Digits Load(const int8_t* hi, const int8_t* lo) {
    return vcombine_s8(vld1_s8(hi), vld1_s8(lo));
  }
  static Sums Zero() { return vdupq_n_s32(0); }
  static void Add(Sums& sums, uint8x16_t bytes, Digits digits) {
    sums = vusmmlaq_s32(sums, bytes, digits);
  }
  static void Finish(Sums a, Sums b, int32_t, int32_t, int32_t* hi, int32_t* lo) {
    vst1q_s32(hi, vuzp1q_s32(a, b));
    vst1q_s32(lo, vuzp2q_s32(a, b));
  }
};

}  // namespace

AttentionFunction UsmmlaInt8Attention() {
  constexpr unsigned long kHwcap2I8mm = 1UL << 13;
  return (getauxval(AT_HWCAP2) & kHwcap2I8mm) != 0 ? Int8AttentionKernel<NeonDotOps<Usmmla>>::Attend
                                                   : nullptr;
}

}  // namespace loopspec::cpu

#else

namespace loopspec::cpu {
AttentionFunction UsmmlaInt8Attention() {
  return nullptr;
}
}  // namespace loopspec::cpu

#endif

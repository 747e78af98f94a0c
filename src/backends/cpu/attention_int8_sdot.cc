// Scores and sums of values by SDOT (Arm): four positions, or four dimensions, to a vector. What is
// stored plus 128 is made signed again, and 128 times the digits added to the sums.
#include "backends/cpu/ops.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#include <sys/auxv.h>

#include "backends/cpu/attention_int8.h"

namespace loopspec::cpu {
namespace {

struct SdotOps {
  static int8x16_t Load(const std::byte* at) {
    return vreinterpretq_s8_u8(
        veorq_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(at)), vdupq_n_u8(0x80)));
  }
  static int8x16_t Four(const int8_t* at) {  // in every lane
    int32_t four;
    std::memcpy(&four, at, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
  }
  static int32x4_t Offset(const int8_t* digits, int n) {
    int32_t sum = 0;
    for (int i = 0; i < n; ++i) sum += digits[i];
    return vdupq_n_s32(128 * sum);
  }

  static void Keys(const std::byte* keys, const int8_t* hi, const int8_t* lo, int d, int blocks,
                   int32_t* hi_sums, int32_t* lo_sums) {
    const int32x4_t hi_offset = Offset(hi, d), lo_offset = Offset(lo, d);
    for (int b = 0; b < blocks; ++b, keys += kKeyBlock * d) {
      int32x4_t h[4], l[4];
      for (int q = 0; q < 4; ++q) {
        h[q] = hi_offset;
        l[q] = lo_offset;
      }
      for (int i = 0; i < d; i += 4) {
        const int8x16_t xh = Four(hi + i), xl = Four(lo + i);
        for (int q = 0; q < 4; ++q) {
          const int8x16_t key = Load(keys + i * kKeyBlock + 16 * q);
          h[q] = vdotq_s32(h[q], key, xh);
          l[q] = vdotq_s32(l[q], key, xl);
        }
      }
      for (int q = 0; q < 4; ++q) {
        vst1q_s32(hi_sums + b * kKeyBlock + 4 * q, h[q]);
        vst1q_s32(lo_sums + b * kKeyBlock + 4 * q, l[q]);
      }
    }
  }

  static void Values(const std::byte* values, const int8_t* hi, const int8_t* lo, int d, int fours,
                     int32_t* hi_sums, int32_t* lo_sums) {
    const int32x4_t hi_offset = Offset(hi, 4 * fours), lo_offset = Offset(lo, 4 * fours);
    // 32 dimensions at a time: 16 of 32 registers hold sums.
    for (int at = 0; at < d; at += 32) {
      const int vectors = std::min(8, (d - at) / 4);
      int32x4_t h[8], l[8];
      for (int v = 0; v < 8; ++v) {
        h[v] = hi_offset;
        l[v] = lo_offset;
      }
      const std::byte* from = values + 4 * at;
      for (int f = 0; f < fours; ++f, from += 4 * d) {
        const int8x16_t xh = Four(hi + 4 * f), xl = Four(lo + 4 * f);
        if (vectors == 8) {
          for (int v = 0; v < 8; ++v) {
            const int8x16_t value = Load(from + 16 * v);
            h[v] = vdotq_s32(h[v], value, xh);
            l[v] = vdotq_s32(l[v], value, xl);
          }
        } else {
          for (int v = 0; v < vectors; ++v) {
            const int8x16_t value = Load(from + 16 * v);
            h[v] = vdotq_s32(h[v], value, xh);
            l[v] = vdotq_s32(l[v], value, xl);
          }
        }
      }
      for (int v = 0; v < vectors; ++v) {
        vst1q_s32(hi_sums + at + 4 * v, h[v]);
        vst1q_s32(lo_sums + at + 4 * v, l[v]);
      }
    }
  }
};

}  // namespace

AttentionFunction SdotInt8Attention() {
  constexpr unsigned long kHwcapAsimdDp = 1UL << 20;
  return (getauxval(AT_HWCAP) & kHwcapAsimdDp) != 0 ? Int8AttentionRow<SdotOps>::Attend : nullptr;
}

}  // namespace loopspec::cpu

#else

namespace loopspec::cpu {
AttentionFunction SdotInt8Attention() {
  return nullptr;
}
}  // namespace loopspec::cpu

#endif

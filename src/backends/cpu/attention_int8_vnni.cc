// Scores and sums of values by VPDPBUSD (x86 AVX512-VNNI): 16 positions, or 16 dimensions, at a
// time.
#include "backends/cpu/ops.h"

#if defined(__x86_64__) && defined(__AVX512VNNI__)
#include <immintrin.h>

#include "backends/cpu/attention_int8.h"

namespace loopspec::cpu {
namespace {

inline __m512i Four(const int8_t* at) {
  int32_t four;
  std::memcpy(&four, at, 4);
  return _mm512_set1_epi32(four);
}

struct VnniOps {
  // Four blocks at a time: eight sums that need not wait for each other.
  template <int kBlocks>
  static void KeyBlocks(const std::byte* keys, const int8_t* hi, const int8_t* lo, int d,
                        int32_t* hi_sums, int32_t* lo_sums) {
    __m512i h[kBlocks], l[kBlocks];
    for (int b = 0; b < kBlocks; ++b) h[b] = l[b] = _mm512_setzero_si512();
    for (int i = 0; i < d; i += 4) {
      const __m512i xh = Four(hi + i), xl = Four(lo + i);
      for (int b = 0; b < kBlocks; ++b) {
        const __m512i key = _mm512_loadu_si512(keys + int64_t{b} * kKeyBlock * d + i * kKeyBlock);
        h[b] = _mm512_dpbusd_epi32(h[b], key, xh);
        l[b] = _mm512_dpbusd_epi32(l[b], key, xl);
      }
    }
    for (int b = 0; b < kBlocks; ++b) {
      _mm512_storeu_si512(hi_sums + b * kKeyBlock, h[b]);
      _mm512_storeu_si512(lo_sums + b * kKeyBlock, l[b]);
    }
  }
  static void Keys(const std::byte* keys, const int8_t* hi, const int8_t* lo, int d, int blocks,
                   const std::byte*, int32_t* hi_sums, int32_t* lo_sums) {
    if (blocks == 4) return KeyBlocks<4>(keys, hi, lo, d, hi_sums, lo_sums);
    for (int b = 0; b < blocks; ++b) {
      KeyBlocks<1>(keys + int64_t{b} * kKeyBlock * d, hi, lo, d, hi_sums + b * kKeyBlock,
                   lo_sums + b * kKeyBlock);
    }
  }

  template <int kVectors>
  static void ValueBlocks(const std::byte* values, const int8_t* hi, const int8_t* lo, int d,
                          int fours, int32_t* hi_sums, int32_t* lo_sums) {
    __m512i h[kVectors], l[kVectors];
    for (int v = 0; v < kVectors; ++v) h[v] = l[v] = _mm512_setzero_si512();
    for (int f = 0; f < fours; ++f) {
      const __m512i xh = Four(hi + 4 * f), xl = Four(lo + 4 * f);
      for (int v = 0; v < kVectors; ++v) {
        const __m512i value = _mm512_loadu_si512(values + int64_t{f} * 4 * d + v * 64);
        h[v] = _mm512_dpbusd_epi32(h[v], value, xh);
        l[v] = _mm512_dpbusd_epi32(l[v], value, xl);
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      _mm512_storeu_si512(hi_sums + 16 * v, h[v]);
      _mm512_storeu_si512(lo_sums + 16 * v, l[v]);
    }
  }
  static void Values(const std::byte* values, const int8_t* hi, const int8_t* lo, int d, int fours,
                     const std::byte*, int32_t* hi_sums, int32_t* lo_sums) {
    int i = 0;
    for (; i + 128 <= d; i += 128)
      ValueBlocks<8>(values + 4 * i, hi, lo, d, fours, hi_sums + i, lo_sums + i);
    for (; i + 64 <= d; i += 64)
      ValueBlocks<4>(values + 4 * i, hi, lo, d, fours, hi_sums + i, lo_sums + i);
    for (; i < d; i += 16)
      ValueBlocks<1>(values + 4 * i, hi, lo, d, fours, hi_sums + i, lo_sums + i);
  }
};

}  // namespace

AttentionFunction VnniInt8Attention() {
  static const bool usable =
      __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return usable ? Int8AttentionKernel<VnniOps>::Attend : nullptr;
}

}  // namespace loopspec::cpu

#else

namespace loopspec::cpu {
AttentionFunction VnniInt8Attention() {
  return nullptr;
}
}  // namespace loopspec::cpu

#endif

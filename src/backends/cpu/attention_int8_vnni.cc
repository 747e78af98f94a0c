// Scores and sums of values by VPDPBUSD (x86 AVX512-VNNI): 16 positions, or 16 dimensions, at a
// time.
#include "backends/cpu/ops.h"

#if defined(__x86_64__) && defined(__AVX512VNNI__)
#include <immintrin.h>

#include <array>

#include "backends/cpu/attention_int8.h"

namespace loopspec::cpu {
namespace {

inline __m512i Four(const int8_t* at) {
  int32_t four;
  std::memcpy(&four, at, 4);
  return _mm512_set1_epi32(four);
}

// For rotating the eight-byte parts of a vector, into each of which the bytes of a part of `width`
// bits were loaded: brings number i's bits from where they lie in byte i mod 8w to `bit`.
constexpr auto RotationsOf(int width, int bit) {
  std::array<int64_t, 8> by{};
  for (int i = 0; i < 8; ++i) by[static_cast<size_t>(i)] = (64 + width * (i / width) - bit) % 64;
  return by;
}

// The part of kWidth bits of 64 numbers that are packed together (kv_residual.h), at kBit.
template <int kWidth, int kBit>
inline __m512i Part(const std::byte* from) {
  static constexpr std::array<int64_t, 8> kRotations = RotationsOf(kWidth, kBit);
  __m512i bytes;
  if constexpr (kWidth == 8) bytes = _mm512_loadu_si512(from);
  if constexpr (kWidth == 4)
    bytes = _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  if constexpr (kWidth == 2)
    bytes = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  if constexpr (kWidth == 1) {
    int64_t eight;
    std::memcpy(&eight, from, 8);
    bytes = _mm512_set1_epi64(eight);
  }
  const __m512i mask = _mm512_set1_epi8(static_cast<char>(((1 << kWidth) - 1) << kBit));
  return _mm512_and_si512(_mm512_rorv_epi64(bytes, _mm512_loadu_si512(kRotations.data())), mask);
}

template <int kBits>
void UnpackVectors(const std::byte* packed, int64_t count, std::byte* out) {
  for (int64_t at = 0; at < count; at += 64, packed += 8 * kBits) {
    __m512i numbers = _mm512_setzero_si512();
    constexpr int kTwo = kBits & 4, kOne = kBits & 6;  // bits before those of these parts
    if constexpr (kBits == 8) numbers = Part<8, 0>(packed);
    if constexpr ((kBits & 4) != 0) numbers = Part<4, 0>(packed);
    if constexpr ((kBits & 2) != 0)
      numbers = _mm512_or_si512(numbers, Part<2, kTwo>(packed + 8 * kTwo));
    if constexpr ((kBits & 1) != 0)
      numbers = _mm512_or_si512(numbers, Part<1, kOne>(packed + 8 * kOne));
    _mm512_storeu_si512(out + at, numbers);
  }
}

struct VnniOps {
  static void Unpack(const std::byte* packed, int bits, int64_t count, std::byte* out) {
    using Function = void (*)(const std::byte*, int64_t, std::byte*);
    static constexpr Function kByBits[] = {UnpackVectors<2>, UnpackVectors<3>, UnpackVectors<4>,
                                           UnpackVectors<5>, UnpackVectors<6>, UnpackVectors<7>,
                                           UnpackVectors<8>};
    kByBits[bits - 2](packed, count, out);
  }

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

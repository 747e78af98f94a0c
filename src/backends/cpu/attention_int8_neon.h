// Scores and sums of values on Arm: a vector has eight numbers of two positions, or of two
// dimensions.
#pragma once

#include <arm_neon.h>

#include "backends/cpu/attention_int8.h"

namespace loopspec::cpu {

// `Dot`, a type of the including file, has
//   kVectors                  vectors of values whose sums fit into registers
//   Digits, Load(hi, lo)      eight digits of both kinds
//   Sums, Zero()              of both kinds of digits with a vector
//   Add(sums, bytes, digits)  the products added
//   Finish(sums, sums, offset_hi, offset_lo, hi, lo)
//                             writes the sums of four; the offsets are 128 times those of the
//                             digits, which numbers stored plus 128 have in their sums
template <class Dot>
struct NeonDotOps {
  static void Unpack(const std::byte* packed, int bits, int64_t count, std::byte* out) {
    UnpackResiduals(packed, bits, count, out);
  }
  static void Keys(const std::byte* keys, const int8_t* hi, const int8_t* lo, int d, int blocks,
                   const std::byte* ahead, int32_t* hi_sums, int32_t* lo_sums) {
    (ahead != nullptr ? AllKeys<true> : AllKeys<false>)(keys, hi, lo, d, blocks, ahead, hi_sums,
                                                        lo_sums);
  }
  static void Values(const std::byte* values, const int8_t* hi, const int8_t* lo, int d, int blocks,
                     const std::byte* ahead, int32_t* hi_sums, int32_t* lo_sums) {
    (ahead != nullptr ? AllValues<true> : AllValues<false>)(values, hi, lo, d, blocks, ahead,
                                                            hi_sums, lo_sums);
  }

 private:
  static int32_t Offset(const int8_t* digits, int n) {
    int32_t sum = 0;
    for (int i = 0; i < n; ++i) sum += digits[i];
    return 128 * sum;
  }

  // `steps` times eight digits with kVectors vectors that lie together; `stride`: bytes from those
  // of a step to the next. Fetches as many bytes from `ahead` on, line after line.
  template <int kVectors, bool kFetch>
  [[gnu::always_inline]] static void AddAll(const std::byte* from, int64_t stride, const int8_t* hi,
                                            const int8_t* lo, int steps, const std::byte* ahead,
                                            int32_t hi_offset, int32_t lo_offset, int32_t* hi_sums,
                                            int32_t* lo_sums) {
    typename Dot::Sums sums[kVectors];
    for (auto& each : sums) each = Dot::Zero();
    for (int s = 0; s < steps; ++s, from += stride) {
      if constexpr (kFetch) {
        for (int at = 0; at < 16 * kVectors; at += 64) __builtin_prefetch(ahead + at, 0, 2);
        ahead += 16 * kVectors;
      }
      const typename Dot::Digits digits = Dot::Load(hi + 8 * s, lo + 8 * s);
      for (int v = 0; v < kVectors; ++v)
        Dot::Add(sums[v], vld1q_u8(reinterpret_cast<const uint8_t*>(from) + 16 * v), digits);
    }
    for (int v = 0; v < kVectors; v += 2) {
      Dot::Finish(sums[v], sums[v + 1], hi_offset, lo_offset, hi_sums + 2 * v, lo_sums + 2 * v);
    }
  }

  template <bool kFetch>
  static void AllKeys(const std::byte* keys, const int8_t* hi, const int8_t* lo, int d, int blocks,
                      const std::byte* ahead, int32_t* hi_sums, int32_t* lo_sums) {
    const int32_t hi_offset = Offset(hi, d), lo_offset = Offset(lo, d);
    for (int b = 0; b < blocks; ++b, hi_sums += kKeyBlock, lo_sums += kKeyBlock) {
      const int64_t at = int64_t{b} * kKeyBlock * d;
      AddAll<kKeyBlock / 2, kFetch>(keys + at, 8 * kKeyBlock, hi, lo, d / 8,
                                    kFetch ? ahead + at : nullptr, hi_offset, lo_offset, hi_sums,
                                    lo_sums);
    }
  }

  template <bool kFetch>
  static void AllValues(const std::byte* values, const int8_t* hi, const int8_t* lo, int d,
                        int blocks, const std::byte* ahead, int32_t* hi_sums, int32_t* lo_sums) {
    const int32_t hi_offset = Offset(hi, 8 * blocks), lo_offset = Offset(lo, 8 * blocks);
    const auto some = [&]<int kVectors>(int at) {
      AddAll<kVectors, kFetch>(values + 8 * at, 8 * d, hi, lo, blocks,
                               kFetch ? ahead + 8 * blocks * at : nullptr, hi_offset, lo_offset,
                               hi_sums + at, lo_sums + at);
    };
    int at = 0;
    for (; at + 2 * Dot::kVectors <= d; at += 2 * Dot::kVectors)
      some.template operator()<Dot::kVectors>(at);
    for (; at < d; at += 16) some.template operator()<8>(at);
  }
};

}  // namespace loopspec::cpu

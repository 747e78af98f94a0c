// Rows of activations as two int8 digits, for the kernels of matmul_quantized.h. Each of them is
// compiled for its own instruction set and instantiates these templates with a type of its own, so
// that none takes another's machine code.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>

#include "backends/cpu/matmul_quantized.h"
#include "base/check.h"

namespace loopspec::cpu {

inline constexpr float kDigitRange =
    32512.0f;  // 127 * 256: the largest value of a row becomes this

// Rows whose digits are interleaved make a block, which mostly is a single row:
//   heads (scale | prefix sums of hi and of lo over steps of 16 inputs) | digits | values of rows
//   that are packed in pieces
// `Digits` says how digits are stored and, as kRowBlock, of how many rows together.
template <class Digits>
struct QuantizedRow {
  static constexpr int kRowBlock = [] {
    if constexpr (requires { Digits::kRowBlock; }) {
      return Digits::kRowBlock;
    } else {
      return 1;
    }
  }();
  static int64_t SumBytes(int64_t k) { return (PaddedInputs(k) / kQuantSumStep + 1) * 4; }
  static int64_t HeadBytes(int64_t k) { return (64 + 2 * SumBytes(k) + 63) / 64 * 64; }
  static int64_t DigitBytes(int64_t k) { return PaddedInputs(k) * 2 * Digits::kBytes; }
  static int64_t Bytes(int64_t k) {
    // An odd number of cache lines: rows at the same input then lie in different sets of a cache.
    const int64_t lines = (HeadBytes(k) + DigitBytes(k) + k * 4 + 63) / 64;
    return (lines | 1) * 64;
  }

  QuantizedRow(const std::byte* packed, int row, int64_t k)
      : base(packed + HeadAt(row, k)),
        hi_sums(reinterpret_cast<const int32_t*>(base + 64)),
        lo_sums(reinterpret_cast<const int32_t*>(base + 64 + SumBytes(k))),
        digits(packed + DigitsAt(row, k)) {}

  float scale() const {
    float value;
    std::memcpy(&value, base, 4);
    return value;
  }
  // Sums of digits of inputs [begin, end), multiples of 16.
  int32_t HiSum(int64_t begin, int64_t end) const {
    return hi_sums[end / kQuantSumStep] - hi_sums[begin / kQuantSumStep];
  }
  int32_t LoSum(int64_t begin, int64_t end) const {
    return lo_sums[end / kQuantSumStep] - lo_sums[begin / kQuantSumStep];
  }
  float Sum(int64_t begin, int64_t end) const {
    return 256.0f * static_cast<float>(HiSum(begin, end)) + static_cast<float>(LoSum(begin, end));
  }

  static void Pack(std::byte* packed, int row, int64_t k, int64_t k_begin, const float* values,
                   int64_t count) {
    LOOPSPEC_CHECK(k_begin == 0 && count == k);
    Quantize(packed, row, k, values);
  }
  static void Stage(std::byte* packed, int row, int64_t k, int64_t k_begin, const float* values,
                    int64_t count) {
    std::memcpy(packed + ValuesAt(row, k) + k_begin * 4, values, static_cast<size_t>(count) * 4);
  }
  static void Finish(std::byte* packed, int row, int64_t k) {
    Quantize(packed, row, k, reinterpret_cast<const float*>(packed + ValuesAt(row, k)));
  }

  const std::byte* base;
  const int32_t *hi_sums, *lo_sums;
  const std::byte* digits;

 private:
  static int64_t BlockAt(int row, int64_t k) { return row / kRowBlock * kRowBlock * Bytes(k); }
  static int64_t HeadAt(int row, int64_t k) {
    return BlockAt(row, k) + row % kRowBlock * HeadBytes(k);
  }
  static int64_t DigitsAt(int row, int64_t k) { return BlockAt(row, k) + kRowBlock * HeadBytes(k); }
  static int64_t ValuesAt(int row, int64_t k) {
    return DigitsAt(row, k) + kRowBlock * DigitBytes(k) + row % kRowBlock * k * 4;
  }

  static void Quantize(std::byte* packed, int row, int64_t k, const float* values) {
    std::byte* base = packed + HeadAt(row, k);
    // Magnitudes compare like their bits, NaN above all.
    int32_t top = 0;
    for (int64_t i = 0; i < k; ++i)
      top = std::max(top, std::bit_cast<int32_t>(values[i]) & 0x7FFFFFFF);
    const float largest = std::bit_cast<float>(top);
    const bool finite = top < 0x7F800000;
    const bool zero = !finite || largest < 1e-30f;
    // A row with NaN or infinity gives NaN; one of almost nothing gives zeros.
    const float scale = finite ? largest / kDigitRange : std::bit_cast<float>(0x7FC00000);
    const float inverse = zero ? 0.0f : kDigitRange / largest;
    const float stored = finite && zero ? 0.0f : scale;
    std::memcpy(base, &stored, 4);
    auto* hi_sums = reinterpret_cast<int32_t*>(base + 64);
    auto* lo_sums = reinterpret_cast<int32_t*>(base + 64 + SumBytes(k));
    hi_sums[0] = lo_sums[0] = 0;
    const int64_t padded = PaddedInputs(k);
    for (int64_t at = 0; at < padded; at += kQuantSumStep) {
      int16_t hi[kQuantSumStep], lo[kQuantSumStep];
      float piece[kQuantSumStep];
      const float* from = values + at;
      if (at + kQuantSumStep > k) {
        for (int64_t i = 0; i < kQuantSumStep; ++i) piece[i] = at + i < k ? values[at + i] : 0.0f;
        from = piece;
      }
      int32_t hi_sum = 0, lo_sum = 0;
      for (int64_t i = 0; i < kQuantSumStep; ++i) {
        // Adding 1.5 * 2^23 rounds to the nearest integer, which then is in the low bits.
        const float value = zero ? 0.0f : from[i] * inverse;
        const int32_t x = std::bit_cast<int32_t>(value + 12582912.0f) - 0x4B400000;
        const int32_t h = (x + 128) >> 8, l = x - h * 256;
        hi[i] = static_cast<int16_t>(h);
        lo[i] = static_cast<int16_t>(l);
        hi_sum += h;
        lo_sum += l;
      }
      hi_sums[at / kQuantSumStep + 1] = hi_sums[at / kQuantSumStep] + hi_sum;
      lo_sums[at / kQuantSumStep + 1] = lo_sums[at / kQuantSumStep] + lo_sum;
      std::byte* digits = packed + DigitsAt(row, k);
      if constexpr (kRowBlock > 1) {
        Digits::Store(digits, row % kRowBlock, at, hi, lo);
      } else {
        Digits::Store(digits, padded, at, hi, lo);
      }
    }
  }
};

// Digits as x86 wants them: hi [padded] | lo [padded] as int8, then the same as bf16, hi times 256:
// whole numbers below 2^24 are summed exactly in float32 too. `Owner`: a type of the including
// file.
template <class Owner>
struct IntegerAndFloatDigits {
  static constexpr int kBytes = 3;
  static void Store(std::byte* digits, int64_t padded, int64_t at, const int16_t* hi,
                    const int16_t* lo) {
    auto* to = reinterpret_cast<int8_t*>(digits);
    auto* as_float = reinterpret_cast<uint16_t*>(digits + 2 * padded);
    for (int64_t i = 0; i < kQuantSumStep; ++i) {
      to[at + i] = static_cast<int8_t>(hi[i]);
      to[padded + at + i] = static_cast<int8_t>(lo[i]);
    }
    for (int64_t i = 0; i < kQuantSumStep; ++i) {  // no bit is lost by leaving the low halves out
      as_float[at + i] =
          static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(hi[i] * 256)) >> 16);
      as_float[padded + at + i] =
          static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(lo[i])) >> 16);
    }
  }
};

// Calls body(block, first lane, lanes, output index in `out`) for every block of 16 outputs that
// the call touches.
template <class Digits, class Body>
inline void ForBlocks(const MatMulCall& call, Body&& body) {
  const int64_t last = call.first + call.count;
  for (int64_t block = call.first / kQuantOutputs; block * kQuantOutputs < last; ++block) {
    const int64_t from = std::max(call.first, block * kQuantOutputs);
    const int64_t until = std::min(last, (block + 1) * kQuantOutputs);
    body(block, static_cast<int>(from - block * kQuantOutputs), static_cast<int>(until - from),
         from - call.first);
  }
}

}  // namespace loopspec::cpu

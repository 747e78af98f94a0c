// What attention_math.cuh does, with int8 keys and values: queries and weights are two digits each
// (device/int8_math.cuh), and the matrix instruction multiplies int8.
//
// With eight queries their high digits are the first eight rows of the instruction, the low digits
// the other eight; with sixteen each digit has an instruction of its own. A key's scale is folded
// into its score, a value's into its weight; the sum of the weights is of those without it. A
// split's weights have one scale for each query.
#pragma once

#include "backends/cuda/device/attention_math.cuh"
#include "backends/cuda/device/int8_math.cuh"
#include "backends/cuda/device/kv_int8.cuh"

namespace loopspec::cuda {

// Weights of a split, as the long side of the instruction: of positions 8 j + 2 t, 8 j + 2 t + 1
// and the same in the next eight, for even j, in place j / 2.
template <int kGroups, int kHalves>
struct WeightDigits {
  uint32_t high[kHalves][kGroups / 2], low[kHalves][kGroups / 2];
  float scale[kHalves];

  __device__ __forceinline__ WeightDigits(const float (&s)[kGroups][4],
                                          const float2 (&scales)[kGroups]) {
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
      float w[kGroups][2];
      int top = 0;
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        w[j][0] = __fmul_rn(s[j][2 * i], scales[j].x);
        w[j][1] = __fmul_rn(s[j][2 * i + 1], scales[j].y);
        // No weight is negative, so they compare as their bits do, NaN as the largest.
        top = max(top, max(__float_as_int(w[j][0]), __float_as_int(w[j][1])));
      }
      const Int8Scale by(LargestOfQuad(top), kMostDigits);
      scale[i] = by.scale;
#pragma unroll
      for (int j = 0; j < kGroups; j += 2) {
        uint32_t u[4];
#pragma unroll
        for (int e = 0; e < 4; ++e)
          u[e] = __float_as_uint(fmaf(w[j + e / 2][e % 2], by.inverse, kToDigits));
        DigitsOfFour(u, high[i][j / 2], low[i][j / 2]);
      }
    }
  }
};

template <int kHead, int kQueries>  // 8 or 16
struct Int8State : SoftmaxState<kHead, kQueries> {
  using Base = SoftmaxState<kHead, kQueries>;
  using Base::kHalves;
  using Base::kParts;
  using Base::o;
  using Block = Int8Block<kHead>;
  static constexpr int kGroups = Block::kGroups;
  using Weights = WeightDigits<kGroups, kHalves>;
  // Digits of queries g and g + 8: elements 32 c + 8 t + 4 i ... + 3 in place 2 c + i.
  uint32_t high[kHalves][2 * kParts], low[kHalves][2 * kParts];
  float scale[kHalves];  // theirs times attention's

  __device__ __forceinline__ void SetQuery(int half, bool valid, uint4 (&parts)[kParts],
                                           float attention_scale) {
#pragma unroll
    for (int c = 0; c < kParts; ++c) parts[c] = valid ? parts[c] : make_uint4(0, 0, 0, 0);
    scale[half] = __fmul_rn(RoundToDigits(parts, high[half], low[half]), attention_scale);
  }

  __device__ __forceinline__ void Score(const typename Block::Codes& keys,
                                        const typename Block::Scales& scales,
                                        float (&s)[kGroups][4]) const {
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      int sums[2 * kHalves][2];  // [query][position], high digits, then low ones
      if constexpr (kHalves == 1) {
        int c[4] = {};
#pragma unroll
        for (int p = 0; p < kParts; ++p)
          MmaInt8(c, high[0][2 * p], low[0][2 * p], high[0][2 * p + 1], low[0][2 * p + 1],
                  keys[j][2 * p], keys[j][2 * p + 1]);
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[e / 2][e % 2] = c[e];
      } else {
        int c[2][4] = {};
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
          MmaInt8(c[0], high[0][2 * p], high[1][2 * p], high[0][2 * p + 1], high[1][2 * p + 1],
                  keys[j][2 * p], keys[j][2 * p + 1]);
          MmaInt8(c[1], low[0][2 * p], low[1][2 * p], low[0][2 * p + 1], low[1][2 * p + 1],
                  keys[j][2 * p], keys[j][2 * p + 1]);
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) sums[e / 2][e % 2] = c[e / 4][e % 4];
      }
#pragma unroll
      for (int i = 0; i < kHalves; ++i) {
        s[j][2 * i] =
            __fmul_rn(__fmul_rn(Together(sums[i][0], sums[kHalves + i][0]), scales[j].x), scale[i]);
        s[j][2 * i + 1] =
            __fmul_rn(__fmul_rn(Together(sums[i][1], sums[kHalves + i][1]), scales[j].y), scale[i]);
      }
    }
  }

  // Adds part c of the values of a split to `to`, which is laid out like o[c].
  //
  // Two neighbouring codes are a 16-bit element for the transpose of a matrix held by a warp; then
  // a lane has them for two positions, and those of two such registers are sorted into the first
  // codes of four positions and the second ones.
  static __device__ __forceinline__ void AddPart(int c, const typename Block::Codes& values,
                                                 const Weights& weights,
                                                 float (&to)[4][2 * kHalves]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int sums[2][2][4] = {};  // of first and second codes; with 16 queries by digit
#pragma unroll
      for (int j = 0; j < kGroups; j += kStep) {
        uint32_t first[kStep / 2], second[kStep / 2];
#pragma unroll
        for (int k = 0; k < kStep / 2; ++k) {
          const uint32_t a = Transpose(values[j + 2 * k][2 * c + i]),
                         b = Transpose(values[j + 2 * k + 1][2 * c + i]);
          first[k] = __byte_perm(a, b, 0x6420);
          second[k] = __byte_perm(a, b, 0x7531);
        }
        Multiply(weights, j / 2, first, sums[0]);
        Multiply(weights, j / 2, second, sums[1]);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {  // columns 2 t + r of the products
#pragma unroll
        for (int e = 0; e < 2; ++e) {
#pragma unroll
          for (int half = 0; half < kHalves; ++half) {
            const int(&s)[2][4] = sums[e];
            const float sum = kHalves == 1 ? Together(s[0][r], s[0][2 + r])
                                           : Together(s[0][2 * half + r], s[1][2 * half + r]);
            float& out = to[2 * i + r][2 * half + e];
            out = fmaf(sum, weights.scale[half], out);
          }
        }
      }
    }
  }
  __device__ __forceinline__ void Add(const typename Block::Codes& values, const Weights& weights) {
#pragma unroll
    for (int c = 0; c < kParts; ++c) AddPart(c, values, weights, o[c]);
  }

 private:
  // Groups of eight positions that an instruction takes.
  static constexpr int kStep = kGroups % 4 == 0 ? 4 : 2;

  static __device__ __forceinline__ void Multiply(const Weights& w, int at,
                                                  const uint32_t (&b)[kStep / 2],
                                                  int (&sums)[2][4]) {
    if constexpr (kHalves == 1) {
      if constexpr (kStep == 4) {
        MmaInt8(sums[0], w.high[0][at], w.low[0][at], w.high[0][at + 1], w.low[0][at + 1], b[0],
                b[1]);
      } else {
        MmaInt8(sums[0], w.high[0][at], w.low[0][at], b[0]);
      }
    } else {
      if constexpr (kStep == 4) {
        MmaInt8(sums[0], w.high[0][at], w.high[1][at], w.high[0][at + 1], w.high[1][at + 1], b[0],
                b[1]);
        MmaInt8(sums[1], w.low[0][at], w.low[1][at], w.low[0][at + 1], w.low[1][at + 1], b[0],
                b[1]);
      } else {
        MmaInt8(sums[0], w.high[0][at], w.high[1][at], b[0]);
        MmaInt8(sums[1], w.low[0][at], w.low[1][at], b[0]);
      }
    }
  }
};

}  // namespace loopspec::cuda

// Numbers as int8: keys and values as codes with a scale, queries and weights as 16-bit integers in
// two int8 digits, and the products of the two. Sums of such products are exact, so nothing about
// their order has to be kept.
//
//   key or value  x ~ scale code, code in -127 ... 127
//   query, weight x ~ scale (256 high + low)
//
// The formulas are the CPU's (backends/cpu/kv_int8.cc, attention_int8.h), up to the rounding of
// quotients. NaN or infinity give a scale of NaN, so that what is computed with it is NaN too.
#pragma once

#include <cuda_bf16.h>

#include "backends/cuda/device/instructions.cuh"

namespace loopspec::cuda {

// c += a b: a 16 x 32, b 32 x 8, int8 in, int32 sums.
__device__ inline void MmaInt8(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                               uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// c += a b: a 16 x 16, b 16 x 8, int8 in, int32 sums.
__device__ inline void MmaInt8(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(b0));
}

// The sum of products of both digits.
__device__ __forceinline__ float Together(int high, int low) {
  return __int2float_rn(high * 256 + low);
}

inline constexpr float kToInteger = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer,
                                                  // which then is in the low bits

// A quotient that all instances round alike, and how a scale follows from the largest magnitude.
struct Int8Scale {
  float inverse;  // what numbers are multiplied with
  float scale;    // its inverse

  // `top`: the bits of the largest magnitude, NaN and infinity included. `most`: the largest
  // integer.
  __device__ __forceinline__ Int8Scale(int top, float most) {
    const float largest = __int_as_float(top);
    const bool finite = top < 0x7F800000, zero = largest < 1e-30f;
    inverse = finite && !zero ? __fdividef(most, largest) : 0.0f;
    scale = !finite ? __int_as_float(0x7FC00000) : zero ? 0.0f : __fmul_rn(largest, 1.0f / most);
  }
};

// The largest of four lanes whose numbers are neighbours.
__device__ __forceinline__ int LargestOfQuad(int top) {
  top = max(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
  return max(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
}

// The bits of the largest magnitude in a vector of bf16, of which four lanes have parts.
template <int kParts>
__device__ __forceinline__ int LargestMagnitude(const uint4 (&x)[kParts]) {
  __nv_bfloat162 top = __float2bfloat162_rn(0.0f);
  const auto take = [&](uint32_t pair) {
    top = __hmax2_nan(top, __habs2(*reinterpret_cast<const __nv_bfloat162*>(&pair)));
  };
#pragma unroll
  for (int c = 0; c < kParts; ++c) {
    take(x[c].x);
    take(x[c].y);
    take(x[c].z);
    take(x[c].w);
  }
  const uint32_t both = *reinterpret_cast<const uint32_t*>(&top);
  return LargestOfQuad(max(static_cast<int>(both << 16), static_cast<int>(both & 0xFFFF0000u)));
}

// The integers nearest to a pair of bf16 times `inverse`, plus `offset`, in the low 16 bits.
__device__ __forceinline__ void RoundPair(uint32_t pair, float inverse, float offset, uint32_t& low,
                                          uint32_t& high) {
  low = __float_as_uint(fmaf(__uint_as_float(pair << 16), inverse, offset));
  high = __float_as_uint(fmaf(__uint_as_float(pair & 0xFFFF0000u), inverse, offset));
}

__device__ __forceinline__ uint32_t RoundFour(uint32_t first, uint32_t second, float inverse) {
  uint32_t u[4];
  RoundPair(first, inverse, kToInteger, u[0], u[1]);
  RoundPair(second, inverse, kToInteger, u[2], u[3]);
  return __byte_perm(__byte_perm(u[0], u[1], 0x0040), __byte_perm(u[2], u[3], 0x0040), 0x5410);
}
// Rounds a key or value of one head, of which four lanes have parts; returns its scale.
template <int kParts>
__device__ __forceinline__ float RoundToCodes(const uint4 (&x)[kParts],
                                              uint32_t (&codes)[2 * kParts]) {
  const Int8Scale by(LargestMagnitude(x), 127.0f);
#pragma unroll
  for (int c = 0; c < kParts; ++c) {
    codes[2 * c] = RoundFour(x[c].x, x[c].y, by.inverse);
    codes[2 * c + 1] = RoundFour(x[c].z, x[c].w, by.inverse);
  }
  return by.scale;
}

// The digits of four integers in the low 16 bits of u, to which 128 was added: the low digit is in
// -128 ... 127.
__device__ __forceinline__ void DigitsOfFour(const uint32_t (&u)[4], uint32_t& high,
                                             uint32_t& low) {
  const uint32_t a = __byte_perm(u[0], u[1], 0x5140), b = __byte_perm(u[2], u[3], 0x5140);
  low = __byte_perm(a, b, 0x5410) ^ 0x80808080u;
  high = __byte_perm(a, b, 0x7632);
}
inline constexpr float kMostDigits = 32512.0f;  // 256 * 127
inline constexpr float kToDigits = kToInteger + 128.0f;

// Digits of a query of one head, of which four lanes have parts; returns their scale.
template <int kParts>
__device__ __forceinline__ float RoundToDigits(const uint4 (&x)[kParts],
                                               uint32_t (&high)[2 * kParts],
                                               uint32_t (&low)[2 * kParts]) {
  const Int8Scale by(LargestMagnitude(x), kMostDigits);
#pragma unroll
  for (int c = 0; c < kParts; ++c) {
    uint32_t u[4];
    RoundPair(x[c].x, by.inverse, kToDigits, u[0], u[1]);
    RoundPair(x[c].y, by.inverse, kToDigits, u[2], u[3]);
    DigitsOfFour(u, high[2 * c], low[2 * c]);
    RoundPair(x[c].z, by.inverse, kToDigits, u[0], u[1]);
    RoundPair(x[c].w, by.inverse, kToDigits, u[2], u[3]);
    DigitsOfFour(u, high[2 * c + 1], low[2 * c + 1]);
  }
  return by.scale;
}

}  // namespace loopspec::cuda

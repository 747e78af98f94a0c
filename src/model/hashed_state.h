// IFM's initial state s^(0): a hash of absolute position and channel, spread like a normal of
// variance 1 / hidden.
//
//   x = c * 0.013579 + p * 0.021713 + 0.123457      c: channel, p: position
//   z = fraction of 43758.5453123 sin(x)            uniform in (0, 1), about
//   s = erfinv(2 z - 1) * sqrt(2 / hidden)
//
// Every step is rounded to float32. The product before the fraction multiplies the last bit of the
// sine by 43758, so a fused multiply-add or another sine would give another state. This file
// therefore has a sine, a logarithm and an inverse error function of its own, from additions,
// multiplications, divisions and square roots alone, each rounded by itself: the same bits on every
// CPU and GPU.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/host_device.h"

namespace loopspec {
namespace rounded {

// A sum, product, quotient or root that no compiler fuses with the next. The host's sources are
// compiled without contraction; a GPU's compiler has to be told each time.
#ifdef __CUDA_ARCH__
#define LOOPSPEC_ROUNDED(device, host) return device
#else
#define LOOPSPEC_ROUNDED(device, host) return host
#endif
LOOPSPEC_HD inline float Add(float a, float b) {
  LOOPSPEC_ROUNDED(__fadd_rn(a, b), a + b);
}
LOOPSPEC_HD inline float Multiply(float a, float b) {
  LOOPSPEC_ROUNDED(__fmul_rn(a, b), a * b);
}
LOOPSPEC_HD inline double Add(double a, double b) {
  LOOPSPEC_ROUNDED(__dadd_rn(a, b), a + b);
}
LOOPSPEC_HD inline double Multiply(double a, double b) {
  LOOPSPEC_ROUNDED(__dmul_rn(a, b), a * b);
}
LOOPSPEC_HD inline double Divide(double a, double b) {
  LOOPSPEC_ROUNDED(__ddiv_rn(a, b), a / b);
}
LOOPSPEC_HD inline double Root(double a) {
  LOOPSPEC_ROUNDED(__dsqrt_rn(a), std::sqrt(a));
}
#undef LOOPSPEC_ROUNDED

// c[0] + c[1] x + c[2] x^2 ...
template <int kTerms>
LOOPSPEC_HD inline double Polynomial(const double (&c)[kTerms], double x) {
  double sum = c[kTerms - 1];
  for (int i = kTerms - 2; i >= 0; --i) sum = Add(c[i], Multiply(sum, x));
  return sum;
}

// sin x for 0 <= x < 10^6, to 2e-16: Taylor's series of sine or cosine around the nearest multiple
// of pi / 2.
LOOPSPEC_HD inline double Sine(double x) {
  // pi / 2 in two parts. The first has 33 bits, so that its product with a quadrant is exact.
  constexpr double kHalfPiHigh = 0x1.921FB544p+0, kHalfPiLow = 0x1.0B4611A626331p-34;
  const auto quadrant = static_cast<int32_t>(Add(Multiply(x, 0.63661977236758134), 0.5));
  const double q = quadrant;
  const double r =
      Add(Add(x, -Multiply(q, kHalfPiHigh)), -Multiply(q, kHalfPiLow));  // within pi / 4 of 0
  const double square = Multiply(r, r);
  double value;
  if (quadrant % 2 == 0) {
    const double c[] = {1.0,
                        -1.0 / 6,
                        1.0 / 120,
                        -1.0 / 5040,
                        1.0 / 362880,
                        -1.0 / 39916800,
                        1.0 / 6227020800,
                        -1.0 / 1307674368000,
                        1.0 / 355687428096000};
    value = Multiply(r, Polynomial(c, square));
  } else {
    const double c[] = {1.0,
                        -1.0 / 2,
                        1.0 / 24,
                        -1.0 / 720,
                        1.0 / 40320,
                        -1.0 / 3628800,
                        1.0 / 479001600,
                        -1.0 / 87178291200,
                        1.0 / 20922789888000,
                        -1.0 / 6402373705728000};
    value = Polynomial(c, square);
  }
  return quadrant % 4 < 2 ? value : -value;
}

// ln x for a normal x > 0: x = 2^n m with m near 1, and ln m = 2 artanh((m - 1) / (m + 1)).
LOOPSPEC_HD inline double Logarithm(double x) {
  constexpr double kRootHalf = 0.70710678118654752, kLn2 = 0.69314718055994531;
  uint64_t bits;
  memcpy(&bits, &x, 8);
  int n = static_cast<int>(bits >> 52) - 1022;
  bits = (bits & 0x000FFFFFFFFFFFFFu) | 0x3FE0000000000000u;  // m in [0.5, 1)
  double m;
  memcpy(&m, &bits, 8);
  if (m < kRootHalf) {
    m = Multiply(m, 2.0);
    --n;
  }
  const double f = Divide(Add(m, -1.0), Add(m, 1.0));
  const double c[] = {1.0,      1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9, 1.0 / 11,
                      1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};
  const double series = Multiply(Multiply(2.0, f), Polynomial(c, Multiply(f, f)));
  return Add(Multiply(static_cast<double>(n), kLn2), series);
}

// The inverse error function for |y| < 1, to 4e-7 of its value, by the polynomials of Giles,
// "Approximating the erfinv function" (2012).
LOOPSPEC_HD inline double InverseErf(double y) {
  const double w = -Logarithm(Multiply(Add(1.0, -y), Add(1.0, y)));
  if (w < 5.0) {
    const double c[] = {1.50140941,     0.246640727,   -0.00417768164,
                        -0.00125372503, 0.00021858087, -4.39150654e-6,
                        -3.5233877e-6,  3.43273939e-7, 2.81022636e-8};
    return Multiply(Polynomial(c, Add(w, -2.5)), y);
  }
  const double c[] = {2.83297682,     1.00167406,    0.00943887047,  -0.0076224613,  0.00573950773,
                      -0.00367342844, 0.00134934322, 0.000100950558, -0.000200214257};
  return Multiply(Polynomial(c, Add(Root(w), -3.0)), y);
}

}  // namespace rounded

// Element `channel` of s^(0); `scale` is sqrt(2 / hidden).
LOOPSPEC_HD inline float HashedState(uint32_t position, uint32_t channel, float scale) {
  using rounded::Add;
  using rounded::Multiply;
  float x = Multiply(static_cast<float>(channel), 0.013579f);
  x = Add(x, Multiply(static_cast<float>(position), 0.021713f));
  x = Add(x, 0.123457f);
  const float v = Multiply(static_cast<float>(rounded::Sine(x)), 43758.5453123f);
  const auto whole = static_cast<float>(static_cast<int32_t>(v));  // towards zero
  const float floor = whole > v ? Add(whole, -1.0f) : whole;
  float z = Add(v, -floor);
  z = z < 1e-6f ? 1e-6f : z > 0.999999f ? 0.999999f : z;
  const float y = Add(Multiply(2.0f, z), -1.0f);
  return Multiply(static_cast<float>(rounded::InverseErf(y)), scale);
}

}  // namespace loopspec

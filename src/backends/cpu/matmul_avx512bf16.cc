// VDPBF16PS (x86 AVX512-BF16): 16 lanes, each a two-element bf16 dot product added to float32.
// Weights straight from their rows, 32 inputs a load; rows packed plain. One accumulator per
// (output, row).
#include "backends/cpu/matmul.h"

#if defined(__x86_64__) && defined(__AVX512BF16__)
#include <immintrin.h>

#include <algorithm>
#include <cstring>

namespace loopspec::cpu {
namespace {

constexpr int kTile = 4;     // rows of W
constexpr int kMaxRows = 4;  // rows at a time: 16 accumulators
constexpr int kStep = 32;    // inputs a load

void Pack(std::byte* packed, int row, int64_t k, int64_t k_begin, const float* values,
          int64_t count) {
  const int64_t padded = (k + kStep - 1) / kStep * kStep;
  uint16_t* to = reinterpret_cast<uint16_t*>(packed) + row * padded;
  for (int64_t i = 0; i < count; ++i) to[k_begin + i] = FloatToBF16(values[i]);
  if (k_begin + count == k) std::fill(to + k, to + padded, uint16_t{0});
}

inline __m512bh Load(const uint16_t* at) {
  return reinterpret_cast<__m512bh>(_mm512_loadu_si512(at));
}
inline __m512bh LoadSome(const uint16_t* at, int64_t count) {
  const __mmask32 mask = static_cast<__mmask32>((uint64_t{1} << count) - 1);
  return reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(mask, at));
}

template <int kRows>
void Tile(const MatMulCall& call, int64_t n, int first_row) {
  const int64_t x_stride = (call.k + kStep - 1) / kStep * kStep;
  const auto* weights = reinterpret_cast<const uint16_t*>(call.weights);
  const auto* x = reinterpret_cast<const uint16_t*>(call.packed) + first_row * x_stride;
  const uint16_t* w[kTile];
  for (int t = 0; t < kTile; ++t)
    w[t] = weights + std::min<int64_t>(n + t, call.count - 1) * call.k;
  __m512 acc[kTile][kRows];
  for (auto& tile : acc) {
    for (__m512& a : tile) a = _mm512_setzero_ps();
  }
  const auto step = [&](const __m512bh(&wide)[kTile], int64_t k) {
    for (int r = 0; r < kRows; ++r) {
      const __m512bh operand = Load(x + r * x_stride + k);
      for (int t = 0; t < kTile; ++t) acc[t][r] = _mm512_dpbf16_ps(acc[t][r], wide[t], operand);
    }
  };
  const bool fetch = first_row == 0 && n + 2 * kTile <= call.count;
  int64_t k = 0;
  for (; k + kStep <= call.k; k += kStep) {
    __m512bh wide[kTile];
    for (int t = 0; t < kTile; ++t) {
      wide[t] = Load(w[t] + k);
      if (fetch)
        _mm_prefetch(reinterpret_cast<const char*>(w[t] + k + kTile * call.k), _MM_HINT_T1);
    }
    step(wide, k);
  }
  if (k < call.k) {
    __m512bh wide[kTile];
    for (int t = 0; t < kTile; ++t) wide[t] = LoadSome(w[t] + k, call.k - k);
    step(wide, k);
  }
  const int64_t left = std::min<int64_t>(kTile, call.count - n);
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < left; ++t) {
      call.out[(first_row + r) * call.out_stride + n + t] = _mm512_reduce_add_ps(acc[t][r]);
    }
  }
}

void Multiply(const MatMulCall& call) {
  const int64_t band = std::clamp<int64_t>(32768 / (call.k * 2), 4, 64) / kTile * kTile;
  for (int64_t begin = 0; begin < call.count; begin += band) {
    const int64_t end = std::min(call.count, begin + band);
    for (int row = 0; row < call.rows; row += kMaxRows) {
      for (int64_t n = begin; n < end; n += kTile) {
        switch (std::min(call.rows - row, kMaxRows)) {
          case 1:
            Tile<1>(call, n, row);
            break;
          case 2:
            Tile<2>(call, n, row);
            break;
          case 3:
            Tile<3>(call, n, row);
            break;
          default:
            Tile<4>(call, n, row);
            break;
        }
      }
    }
  }
}

constexpr MatMulKernel kKernel = {"AVX512-BF16", 1, kStep, 2, kTile, Pack, Multiply};

}  // namespace

const MatMulKernel* Avx512Bf16Kernel() {
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") ? &kKernel
                                                                                    : nullptr;
}

}  // namespace loopspec::cpu

#else

namespace loopspec::cpu {
const MatMulKernel* Avx512Bf16Kernel() {
  return nullptr;
}
}  // namespace loopspec::cpu

#endif

// BFMMLA (Arm): one instruction multiplies a 2x4 by a 4x2 bf16 matrix into a 2x2 float32 one.
//
// Weights: two rows of W, four inputs each, zipped from plain row-major loads. Rows: packed in pairs, [k/4][2][4], so
// that one load is an operand. A lone row is padded to a pair; its products are the same either way.
#include "backends/cpu/matmul.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include <arm_neon.h>
#include <sys/auxv.h>

#include <algorithm>
#include <cstring>

namespace loopspec::cpu {
namespace {

constexpr int kTile = 8;       // rows of W in registers
constexpr int kMaxPairs = 4;   // row pairs at a time: 4 x 4 accumulators

void Pack(std::byte* packed, int row, int64_t k, int64_t k_begin, const float* values, int64_t count) {
  const int64_t padded = (k + 7) / 8 * 8;
  auto* pair = reinterpret_cast<uint16_t*>(packed) + row / 2 * padded * 2 + row % 2 * 4;
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const bfloat16x4_t half = vcvt_bf16_f32(vld1q_f32(values + i));
    vst1_u16(pair + (k_begin + i) * 2, vreinterpret_u16_bf16(half));
  }
  for (; i < count; ++i) pair[(k_begin + i) / 4 * 8 + (k_begin + i) % 4] = FloatToBF16(values[i]);
  if (k_begin + count == k) {
    for (int64_t j = k; j < padded; ++j) pair[j / 4 * 8 + j % 4] = 0;
  }
}

inline bfloat16x8_t LoadWeights(const uint16_t* address) { return vreinterpretq_bf16_u16(vld1q_u16(address)); }

inline bfloat16x8_t Zip(bfloat16x8_t a, bfloat16x8_t b, bool high) {
  const uint64x2_t x = vreinterpretq_u64_bf16(a), y = vreinterpretq_u64_bf16(b);
  return vreinterpretq_bf16_u64(high ? vzip2q_u64(x, y) : vzip1q_u64(x, y));
}

// Eight inputs of every tile row against `Pairs` row pairs.
template <int Pairs>
inline void Step(const uint16_t* const* w, int64_t at, const uint16_t* x, int64_t pair_stride,
                 float32x4_t (&acc)[kTile / 2][Pairs]) {
  bfloat16x8_t low[kTile / 2], high[kTile / 2];
  for (int t = 0; t < kTile / 2; ++t) {
    const bfloat16x8_t a = LoadWeights(w[2 * t] + at), b = LoadWeights(w[2 * t + 1] + at);
    low[t] = Zip(a, b, false);
    high[t] = Zip(a, b, true);
  }
  for (int p = 0; p < Pairs; ++p) {
    const uint16_t* operand = x + p * pair_stride;
    const bfloat16x8_t x_low = LoadWeights(operand), x_high = LoadWeights(operand + 8);
    for (int t = 0; t < kTile / 2; ++t) acc[t][p] = vbfmmlaq_f32(acc[t][p], low[t], x_low);
    for (int t = 0; t < kTile / 2; ++t) acc[t][p] = vbfmmlaq_f32(acc[t][p], high[t], x_high);
  }
}

template <int Pairs>
void Tile(const MatMulCall& call, int64_t n, int first_row, const uint16_t* x, int64_t pair_stride) {
  const auto* weights = reinterpret_cast<const uint16_t*>(call.weights);
  // Past the last output the last row is computed again and thrown away.
  const uint16_t* w[kTile];
  for (int t = 0; t < kTile; ++t) w[t] = weights + std::min<int64_t>(n + t, call.count - 1) * call.k;
  float32x4_t acc[kTile / 2][Pairs];
  for (auto& tile : acc) {
    for (float32x4_t& a : tile) a = vdupq_n_f32(0.0f);
  }
  const int64_t whole = call.k / 8 * 8;
  int64_t k = 0;
  // The rows of a tile are short streams; the next tile lies right behind, so fetch it while this one is multiplied.
  const int64_t ahead = kTile * call.k;
  const bool fetch = first_row == 0 && n + 2 * kTile <= call.count;
  for (; k + 32 <= whole; k += 32) {
    if (fetch) {
      for (int t = 0; t < kTile; ++t) __builtin_prefetch(w[t] + k + ahead, 0, 1);
    }
    for (int j = 0; j < 32; j += 8) Step<Pairs>(w, k + j, x + (k + j) * 2, pair_stride, acc);
  }
  for (; k < whole; k += 8) Step<Pairs>(w, k, x + k * 2, pair_stride, acc);
  if (k < call.k) {  // the last inputs, padded: a load past the row could leave the file
    uint16_t tail[kTile][8] = {};
    const uint16_t* tails[kTile];
    for (int t = 0; t < kTile; ++t) {
      std::memcpy(tail[t], w[t] + k, static_cast<size_t>(call.k - k) * 2);
      tails[t] = tail[t];
    }
    Step<Pairs>(tails, 0, x + k * 2, pair_stride, acc);
  }
  // acc[t][p] = [[w0 x0, w0 x1], [w1 x0, w1 x1]]
  for (int p = 0; p < Pairs; ++p) {
    const int row = first_row + 2 * p;
    float* out0 = call.out + row * call.out_stride + n;
    float* out1 = row + 1 < call.rows ? out0 + call.out_stride : nullptr;
    float32x4_t even[kTile / 4], odd[kTile / 4];
    for (int t = 0; t < kTile / 4; ++t) {
      even[t] = vuzp1q_f32(acc[2 * t][p], acc[2 * t + 1][p]);
      odd[t] = vuzp2q_f32(acc[2 * t][p], acc[2 * t + 1][p]);
    }
    if (n + kTile <= call.count) {
      for (int t = 0; t < kTile / 4; ++t) vst1q_f32(out0 + 4 * t, even[t]);
      for (int t = 0; t < kTile / 4 && out1 != nullptr; ++t) vst1q_f32(out1 + 4 * t, odd[t]);
    } else {
      float values[2][kTile];
      for (int t = 0; t < kTile / 4; ++t) vst1q_f32(values[0] + 4 * t, even[t]);
      for (int t = 0; t < kTile / 4; ++t) vst1q_f32(values[1] + 4 * t, odd[t]);
      const int64_t left = call.count - n;
      std::copy_n(values[0], left, out0);
      if (out1 != nullptr) std::copy_n(values[1], left, out1);
    }
  }
}

void Multiply(const MatMulCall& call) {
  const int64_t pair_stride = (call.k + 7) / 8 * 8 * 2;
  const auto* packed = reinterpret_cast<const uint16_t*>(call.packed);
  const int pairs = (call.rows + 1) / 2;
  for (int64_t n = 0; n < call.count; n += kTile) {
    int p = 0;
    for (; p + kMaxPairs <= pairs; p += kMaxPairs) Tile<4>(call, n, 2 * p, packed + p * pair_stride, pair_stride);
    switch (pairs - p) {
      case 3: Tile<3>(call, n, 2 * p, packed + p * pair_stride, pair_stride); break;
      case 2: Tile<2>(call, n, 2 * p, packed + p * pair_stride, pair_stride); break;
      case 1: Tile<1>(call, n, 2 * p, packed + p * pair_stride, pair_stride); break;
      default: break;
    }
  }
}

constexpr MatMulKernel kKernel = {"BFMMLA", 2, 8, 2, kTile, Pack, Multiply};

}  // namespace

const MatMulKernel* BfmmlaKernel() {
  constexpr unsigned long kHwcap2Bf16 = 1UL << 14;
  return (getauxval(AT_HWCAP2) & kHwcap2Bf16) != 0 ? &kKernel : nullptr;
}

}  // namespace loopspec::cpu

#else

namespace loopspec::cpu {
const MatMulKernel* BfmmlaKernel() { return nullptr; }
}  // namespace loopspec::cpu

#endif

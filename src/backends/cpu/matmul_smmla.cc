// SMMLA (Arm I8MM): two outputs of eight inputs by a row's two digits of the same inputs, into a
// 2x2 matrix of int32 sums. A row's second digit fills what would be a second row.
#include "backends/cpu/matmul_quantized.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_MATMUL_INT8)
#include <arm_neon.h>
#include <sys/auxv.h>

#include "backends/cpu/quantized_row.h"

namespace loopspec::cpu {
namespace {

struct PairDigits {
  static constexpr int kBytes = 1;
  // [padded / 8][hi x 8, lo x 8]
  static void Store(std::byte* digits, int64_t, int64_t at, const int16_t* hi, const int16_t* lo) {
    auto* to = reinterpret_cast<int8_t*>(digits) + 2 * at;
    for (int64_t i = 0; i < kQuantSumStep; ++i) {
      to[i / 8 * 16 + i % 8] = static_cast<int8_t>(hi[i]);
      to[i / 8 * 16 + 8 + i % 8] = static_cast<int8_t>(lo[i]);
    }
  }
};
using PairRow = QuantizedRow<PairDigits>;

constexpr int kMaxPairRows = 3;  // at a time: 24 of 32 registers hold sums
constexpr int kPairs = kQuantOutputs / 2;

inline float32x4_t PairTable(const std::byte* table, DType type, int64_t i) {
  if (type == DType::kF32) return vld1q_f32(reinterpret_cast<const float*>(table) + i);
  return vreinterpretq_f32_u32(
      vshll_n_u16(vld1_u16(reinterpret_cast<const uint16_t*>(table) + i), 16));
}

template <int kBits, int kRows>
void PairBlock(const MatMulCall& call, int64_t block, int first_row, float32x4_t (&out)[kRows][4]) {
  const QuantizedMatrix& m = *call.quantized;
  const auto* codes = reinterpret_cast<const uint8_t*>(m.codes + block * m.block_bytes());
  const std::byte* scales = m.scales + block * m.table_bytes();
  const std::byte* biases = m.biases == nullptr ? nullptr : m.biases + block * m.table_bytes();
  const int8_t* digits[kRows];
  for (int r = 0; r < kRows; ++r) {
    digits[r] = reinterpret_cast<const int8_t*>(PairRow(call.packed, first_row + r, m.in).digits);
    for (float32x4_t& value : out[r]) value = vdupq_n_f32(0.0f);
  }
  for (int64_t g = 0; g < m.groups(); ++g) {
    const int64_t begin = g * m.group, end = begin + m.group;
    int32x4_t acc[kPairs][kRows];
    for (int r = 0; r < kRows; ++r) {
      const PairRow row(call.packed, first_row + r, m.in);
      const int32_t start[4] = {-m.shift * row.HiSum(begin, end), -m.shift * row.LoSum(begin, end),
                                -m.shift * row.HiSum(begin, end), -m.shift * row.LoSum(begin, end)};
      for (int p = 0; p < kPairs; ++p) acc[p][r] = vld1q_s32(start);
    }
    for (int64_t k = begin; k < end; k += 16) {
      int8x16_t x0[kRows], x1[kRows];
      for (int r = 0; r < kRows; ++r) {
        x0[r] = vld1q_s8(digits[r] + 2 * k);
        x1[r] = vld1q_s8(digits[r] + 2 * k + 16);
      }
      for (int p = 0; p < kPairs; ++p) {
        int8x16_t w0, w1;
        if constexpr (kBits == 8) {
          w0 = vreinterpretq_s8_u8(vld1q_u8(codes + 16 * p));
          w1 = vreinterpretq_s8_u8(vld1q_u8(codes + 128 + 16 * p));
        } else {
          const uint8x16_t both = vld1q_u8(codes + 16 * p);
          w0 = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
          w1 = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
        }
        for (int r = 0; r < kRows; ++r) {
          acc[p][r] = vmmlaq_s32(acc[p][r], w0, x0[r]);
          acc[p][r] = vmmlaq_s32(acc[p][r], w1, x1[r]);
        }
      }
      __builtin_prefetch(codes + 2048, 0, 3);
      __builtin_prefetch(codes + 2048 + 64, 0, 3);
      codes += kBits == 8 ? 256 : 128;
    }
    for (int q = 0; q < 4; ++q) {  // four outputs
      const float32x4_t scale = PairTable(scales, m.scale_type, g * kQuantOutputs + 4 * q);
      for (int r = 0; r < kRows; ++r) {
        const int32x4_t hi = vuzp1q_s32(acc[2 * q][r], acc[2 * q + 1][r]);
        const int32x4_t lo = vuzp2q_s32(acc[2 * q][r], acc[2 * q + 1][r]);
        const float32x4_t t = vfmaq_f32(vcvtq_f32_s32(lo), vcvtq_f32_s32(hi), vdupq_n_f32(256.0f));
        out[r][q] = vfmaq_f32(out[r][q], scale, t);
        if (biases != nullptr) {
          const float sum = PairRow(call.packed, first_row + r, m.in).Sum(begin, end);
          out[r][q] =
              vfmaq_f32(out[r][q], PairTable(biases, m.scale_type, g * kQuantOutputs + 4 * q),
                        vdupq_n_f32(sum));
        }
      }
    }
  }
}

template <int kBits, int kRows>
void PairRows(const MatMulCall& call, int64_t block, int lane, int lanes, int64_t to,
              int first_row) {
  float32x4_t out[kRows][4];
  PairBlock<kBits, kRows>(call, block, first_row, out);
  for (int r = 0; r < kRows; ++r) {
    const float scale = PairRow(call.packed, first_row + r, call.quantized->in).scale();
    float values[kQuantOutputs];
    for (int q = 0; q < 4; ++q) vst1q_f32(values + 4 * q, vmulq_n_f32(out[r][q], scale));
    std::copy_n(values + lane, lanes, call.out + (first_row + r) * call.out_stride + to);
  }
}

template <int kBits>
void PairMultiply(const MatMulCall& call) {
  ForBlocks<PairDigits>(call, [&](int64_t block, int lane, int lanes, int64_t to) {
    for (int row = 0; row < call.rows; row += kMaxPairRows) {
      switch (std::min(call.rows - row, kMaxPairRows)) {
        case 1:
          PairRows<kBits, 1>(call, block, lane, lanes, to, row);
          break;
        case 2:
          PairRows<kBits, 2>(call, block, lane, lanes, to, row);
          break;
        default:
          PairRows<kBits, 3>(call, block, lane, lanes, to, row);
          break;
      }
    }
  });
}

void Multiply(const MatMulCall& call) {
  call.quantized->bits == 4 ? PairMultiply<4>(call) : PairMultiply<8>(call);
}

const QuantizedKernel kSmmla = {{.name = "SMMLA",
                                 .row_block = 1,
                                 .k_block = 16,
                                 .element_bytes = 1,
                                 .grain = kQuantOutputs,
                                 .pack = PairRow::Pack,
                                 .multiply = Multiply,
                                 .stage = PairRow::Stage,
                                 .finish = PairRow::Finish,
                                 .packed_row_bytes = PairRow::Bytes},
                                {.inner = 8, .nibbles = true, .is_signed = true}};

}  // namespace

const QuantizedKernel* SmmlaKernel() {
  constexpr unsigned long kHwcap2I8mm = 1UL << 13;
  return (getauxval(AT_HWCAP2) & kHwcap2I8mm) != 0 ? &kSmmla : nullptr;
}

}  // namespace loopspec::cpu

#else

namespace loopspec::cpu {
const QuantizedKernel* SmmlaKernel() {
  return nullptr;
}
}  // namespace loopspec::cpu

#endif

// SDOT (Arm): four outputs, each the sum of four products of int8 numbers. Codes of four outputs
// and four inputs are one vector, against four digits of a row.
#include "backends/cpu/matmul_quantized.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#include <sys/auxv.h>

#include "backends/cpu/sdot_row.h"

namespace loopspec::cpu {
namespace {

constexpr int kMaxDotRows = 2;  // at a time: 16 of 32 registers hold sums

template <int kBits>
using Codes = DotCodes<kBits>;

template <int kBits, int kRows>
void DotBlock(const MatMulCall& call, int64_t block, int first_row, float32x4_t (&out)[kRows][4]) {
  const QuantizedMatrix& m = *call.quantized;
  const auto* codes = reinterpret_cast<const uint8_t*>(m.codes + block * m.block_bytes());
  const std::byte* scales = m.scales + block * m.table_bytes();
  const std::byte* biases = m.biases == nullptr ? nullptr : m.biases + block * m.table_bytes();
  const int8_t* digits[kRows];
  for (int r = 0; r < kRows; ++r) {
    digits[r] = reinterpret_cast<const int8_t*>(DotRow(call.packed, first_row + r, m.in).digits);
    for (float32x4_t& value : out[r]) value = vdupq_n_f32(0.0f);
  }
  for (int64_t g = 0; g < m.groups(); ++g) {
    const int64_t begin = g * m.group, end = begin + m.group;
    int32x4_t hi[4][kRows], lo[4][kRows];
    for (int r = 0; r < kRows; ++r) {
      const DotRow row(call.packed, first_row + r, m.in);
      for (int q = 0; q < 4; ++q) {
        hi[q][r] = vdupq_n_s32(Codes<kBits>::Correction(m, row.HiSum(begin, end)));
        lo[q][r] = vdupq_n_s32(Codes<kBits>::Correction(m, row.LoSum(begin, end)));
      }
    }
    for (int64_t k = begin; k < end; k += 16) {
      int8x16_t xh[kRows], xl[kRows];
      for (int r = 0; r < kRows; ++r) {
        xh[r] = vld1q_s8(digits[r] + k);
        xl[r] = vld1q_s8(digits[r] + m.padded + k);
      }
      // Four inputs of 16 outputs; the lane of the digits must be known to the compiler.
      const auto step = [&]<int kLane>(const int8x16_t(&w)[4]) {
        for (int q = 0; q < 4; ++q) {
          for (int r = 0; r < kRows; ++r) {
            hi[q][r] = vdotq_laneq_s32(hi[q][r], w[q], xh[r], kLane);
            lo[q][r] = vdotq_laneq_s32(lo[q][r], w[q], xl[r], kLane);
          }
        }
      };
      const auto two = [&]<int kLane>() {
        int8x16_t w0[4], w1[4];
        for (int q = 0; q < 4; ++q) {
          w0[q] = Codes<kBits>::First(codes + 16 * q);
          w1[q] = Codes<kBits>::Second(codes + 16 * q, 64);
        }
        step.template operator()<kLane>(w0);
        step.template operator()<kLane + 1>(w1);
        codes += kBits == 8 ? 128 : 64;
        __builtin_prefetch(codes + 2048, 0, 3);
      };
      two.template operator()<0>();
      two.template operator()<2>();
    }
    for (int q = 0; q < 4; ++q) {
      const int64_t at = g * kQuantOutputs + 4 * q;
      const float32x4_t scale = Codes<kBits>::Table(scales, m.scale_type, at);
      for (int r = 0; r < kRows; ++r) {
        out[r][q] = Codes<kBits>::AddGroup(out[r][q], hi[q][r], lo[q][r], scale);
        if (biases != nullptr) {
          out[r][q] = vfmaq_n_f32(out[r][q], Codes<kBits>::Table(biases, m.scale_type, at),
                                  DotRow(call.packed, first_row + r, m.in).Sum(begin, end));
        }
      }
    }
  }
}

template <int kBits, int kRows>
void DotRows(const MatMulCall& call, int64_t block, int lane, int lanes, int64_t to,
             int first_row) {
  float32x4_t out[kRows][4];
  DotBlock<kBits, kRows>(call, block, first_row, out);
  for (int r = 0; r < kRows; ++r) {
    const float scale = DotRow(call.packed, first_row + r, call.quantized->in).scale();
    Codes<kBits>::Store(out[r], scale, lane, lanes,
                        call.out + (first_row + r) * call.out_stride + to);
  }
}

template <int kBits>
void DotMultiply(const MatMulCall& call) {
  ForBlocks<DotDigits>(call, [&](int64_t block, int lane, int lanes, int64_t to) {
    int row = 0;
    for (; row + kMaxDotRows <= call.rows; row += kMaxDotRows)
      DotRows<kBits, kMaxDotRows>(call, block, lane, lanes, to, row);
    if (row < call.rows) DotRows<kBits, 1>(call, block, lane, lanes, to, row);
  });
}

void Multiply(const MatMulCall& call) {
  if (call.quantized->group <= kSmallGroup) return SdotGroups(call);
  call.quantized->bits == 4 ? DotMultiply<4>(call) : DotMultiply<8>(call);
}

const QuantizedKernel kSdot = {{.name = "SDOT",
                                .row_block = 1,
                                .k_block = 16,
                                .element_bytes = 1,
                                .grain = kQuantOutputs,
                                .pack = DotRow::Pack,
                                .multiply = Multiply,
                                .stage = DotRow::Stage,
                                .finish = DotRow::Finish,
                                .packed_row_bytes = DotRow::Bytes},
                               {.inner = 4, .nibbles = true, .is_signed = true}};

}  // namespace

const QuantizedKernel* SdotKernel() {
  constexpr unsigned long kHwcapAsimdDp = 1UL << 20;
  return (getauxval(AT_HWCAP) & kHwcapAsimdDp) != 0 ? &kSdot : nullptr;
}

}  // namespace loopspec::cpu

#else

namespace loopspec::cpu {
const QuantizedKernel* SdotKernel() {
  return nullptr;
}
}  // namespace loopspec::cpu

#endif

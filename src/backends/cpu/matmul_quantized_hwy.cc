// The portable kernel for weights of few bits, through Highway. Products of codes and digits are
// summed as float32 numbers, which is exact while sums stay below 2^24, and then added up as
// integers.
#include "backends/cpu/matmul_quantized.h"
#include "backends/cpu/quantized_row.h"

#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/matmul_quantized_hwy.cc"
// foreach_target.h comes first.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace loopspec::cpu {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes: a block of outputs.
using DF = hn::CappedTag<float, kQuantOutputs>;
constexpr DF kDF;
constexpr hn::RebindToSigned<DF> kDI;
using VecF = hn::Vec<DF>;
using VecI = hn::Vec<hn::RebindToSigned<DF>>;
constexpr int kWidth = HWY_MIN(HWY_LANES(float), kQuantOutputs);
constexpr int64_t kExact = 512;  // inputs: 255 * 128 * 512 < 2^24

struct FloatDigits {
  static constexpr int kBytes = 4;
  // [padded][hi, lo]
  static void Store(std::byte* digits, int64_t, int64_t at, const int16_t* hi, const int16_t* lo) {
    auto* to = reinterpret_cast<float*>(digits) + 2 * at;
    for (int64_t i = 0; i < kQuantSumStep; ++i) {
      to[2 * i] = hi[i];
      to[2 * i + 1] = lo[i];
    }
  }
};
using FloatRow = QuantizedRow<FloatDigits>;

HWY_INLINE VecF TableAt(const std::byte* table, DType type, int64_t i) {
  if (type == DType::kF32) return hn::LoadU(kDF, reinterpret_cast<const float*>(table) + i);
  const hn::RebindToUnsigned<DF> du;
  const hn::Rebind<uint16_t, DF> d16;
  const auto half = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(table) + i);
  return hn::BitCast(kDF, hn::ShiftLeft<16>(hn::PromoteTo(du, half)));
}

// kWidth outputs from `lane` on, of one row.
HWY_INLINE VecF Outputs(const QuantizedMatrix& m, int64_t block, const FloatRow& row, int lane) {
  const hn::Rebind<uint8_t, DF> d8;
  const auto* codes = reinterpret_cast<const uint8_t*>(m.codes + block * m.block_bytes()) + lane;
  const std::byte* scales = m.scales + block * m.table_bytes();
  const std::byte* biases = m.biases == nullptr ? nullptr : m.biases + block * m.table_bytes();
  const auto* digits = reinterpret_cast<const float*>(row.digits);
  VecF out = hn::Zero(kDF);
  for (int64_t g = 0; g < m.groups(); ++g) {
    const int64_t begin = g * m.group, end = begin + m.group;
    VecI hi = hn::Set(kDI, -m.shift * row.HiSum(begin, end));
    VecI lo = hn::Set(kDI, -m.shift * row.LoSum(begin, end));
    for (int64_t at = begin; at < end; at += kExact) {
      VecF hi_part = hn::Zero(kDF), lo_part = hn::Zero(kDF);
      for (int64_t k = at; k < HWY_MIN(at + kExact, end); ++k) {
        const VecF w =
            hn::ConvertTo(kDF, hn::PromoteTo(kDI, hn::LoadU(d8, codes + k * kQuantOutputs)));
        hi_part = hn::MulAdd(w, hn::Set(kDF, digits[2 * k]), hi_part);
        lo_part = hn::MulAdd(w, hn::Set(kDF, digits[2 * k + 1]), lo_part);
      }
      hi = hn::Add(hi, hn::ConvertTo(kDI, hi_part));
      lo = hn::Add(lo, hn::ConvertTo(kDI, lo_part));
    }
    const VecF t = hn::MulAdd(hn::ConvertTo(kDF, hi), hn::Set(kDF, 256.0f), hn::ConvertTo(kDF, lo));
    out = hn::MulAdd(TableAt(scales, m.scale_type, g * kQuantOutputs + lane), t, out);
    if (biases != nullptr) {
      out = hn::MulAdd(TableAt(biases, m.scale_type, g * kQuantOutputs + lane),
                       hn::Set(kDF, row.Sum(begin, end)), out);
    }
  }
  return hn::Mul(out, hn::Set(kDF, row.scale()));
}

void Multiply(const MatMulCall& call) {
  ForBlocks<FloatDigits>(call, [&](int64_t block, int lane, int lanes, int64_t to) {
    for (int r = 0; r < call.rows; ++r) {
      const FloatRow row(call.packed, r, call.quantized->in);
      float values[kQuantOutputs];
      for (int at = 0; at < kQuantOutputs; at += kWidth)
        hn::StoreU(Outputs(*call.quantized, block, row, at), kDF, values + at);
      std::copy_n(values + lane, lanes, call.out + r * call.out_stride + to);
    }
  });
}

const QuantizedKernel* QuantizedPortable() {
  static const QuantizedKernel kernel = {{.name = hwy::TargetName(HWY_TARGET),
                                          .row_block = 1,
                                          .k_block = 16,
                                          .element_bytes = 1,
                                          .grain = kQuantOutputs,
                                          .pack = FloatRow::Pack,
                                          .multiply = Multiply,
                                          .stage = FloatRow::Stage,
                                          .finish = FloatRow::Finish,
                                          .packed_row_bytes = FloatRow::Bytes},
                                         {.inner = 1, .nibbles = false, .is_signed = false}};
  return &kernel;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace loopspec::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace loopspec::cpu {

HWY_EXPORT(QuantizedPortable);

const QuantizedKernel* PortableQuantizedKernel() {
  return HWY_DYNAMIC_DISPATCH(QuantizedPortable)();
}

}  // namespace loopspec::cpu
#endif

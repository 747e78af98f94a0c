// The portable kernel, through Highway: float32 activations (or bf16-rounded ones) against float32,
// bf16 or f16 weights, fused multiply-add in float32.
//
// SVE targets are left out: their vectors cannot live in the register arrays of a tile, and on
// every SVE server chip so far NEON reaches the same multiply-add rate.
#include "backends/cpu/matmul.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/matmul_hwy.cc"
// foreach_target.h comes first.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace loopspec::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using VF = hn::Vec<D>;
constexpr D kD;
constexpr int kLanes = HWY_LANES(float);
// Accumulators of a tile: 16 of 32 vector registers, or 8 of 16; the weights need up to 8 more.
constexpr bool kFewRegisters =
    HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3;  // better targets have lower numbers
constexpr int kMaxRows = 4;
constexpr int kTileN = kFewRegisters ? 2 : 4;

// Weights come two vectors (2 x kLanes inputs) at a time; rows are packed in the order in which the
// weights arrive.
struct F32Weights {
  static constexpr int kBytes = 4;
  static HWY_INLINE void Load(const std::byte* at, VF& first, VF& second) {
    const auto* w = reinterpret_cast<const float*>(at);
    first = hn::LoadU(kD, w);
    second = hn::LoadU(kD, w + kLanes);
  }
  static int Slot(int i) { return i; }
};

// bf16: the even elements are the low halves of 32-bit words, the odd ones the high halves: one
// operation each.
struct BF16Weights {
  static constexpr int kBytes = 2;
  static HWY_INLINE void Load(const std::byte* at, VF& first, VF& second) {
    const hn::RebindToUnsigned<D> du;
    const hn::Repartition<uint16_t, D> d16;
    const auto words = hn::BitCast(du, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(at)));
    first = hn::BitCast(kD, hn::ShiftLeft<16>(words));
    second = hn::BitCast(kD, hn::And(words, hn::Set(du, 0xFFFF0000u)));
  }
  static int Slot(int i) { return i % 2 == 0 ? i / 2 : kLanes + i / 2; }
};

struct F16Weights {
  static constexpr int kBytes = 2;
  static HWY_INLINE void Load(const std::byte* at, VF& first, VF& second) {
    const hn::Rebind<hwy::float16_t, D> d16;
    const auto* w = reinterpret_cast<const hwy::float16_t*>(at);
    first = hn::PromoteTo(kD, hn::LoadU(d16, w));
    second = hn::PromoteTo(kD, hn::LoadU(d16, w + kLanes));
  }
  static int Slot(int i) { return i; }
};

constexpr int kStep = 2 * kLanes;

template <class Weights, bool kRound>
void Pack(std::byte* packed, int row, int64_t k, int64_t k_begin, const float* values,
          int64_t count) {
  const int64_t padded = (k + kStep - 1) / kStep * kStep;
  float* to = reinterpret_cast<float*>(packed) + row * padded;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = k_begin + i;
    const float value = kRound ? BF16ToFloat(FloatToBF16(values[i])) : values[i];
    to[at / kStep * kStep + Weights::Slot(static_cast<int>(at % kStep))] = value;
  }
  if (k_begin + count == k) {
    for (int64_t at = k; at < padded; ++at) {
      to[at / kStep * kStep + Weights::Slot(static_cast<int>(at % kStep))] = 0.0f;
    }
  }
}

// HWY_UNROLL: the compiler must see every index of `acc` as a number, or it keeps the accumulators
// in memory.
template <class Weights, int kN, int kRows>
HWY_INLINE void StepTile(const std::byte* const* w, const float* x, int64_t x_stride,
                         VF (&acc)[kN][kRows]) {
  VF first[kN], second[kN];
  HWY_UNROLL(8) for (int t = 0; t < kN; ++t) Weights::Load(w[t], first[t], second[t]);
  HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) {
    const VF x0 = hn::LoadU(kD, x + r * x_stride);
    HWY_UNROLL(8) for (int t = 0; t < kN; ++t) acc[t][r] = hn::MulAdd(first[t], x0, acc[t][r]);
    const VF x1 = hn::LoadU(kD, x + r * x_stride + kLanes);
    HWY_UNROLL(8) for (int t = 0; t < kN; ++t) acc[t][r] = hn::MulAdd(second[t], x1, acc[t][r]);
  }
}

// A tile's millions of loads would take ThreadSanitizer 20 times as long as everything else it
// watches, and weights are never written: a whole call is shown to it once (ShowToThreadSanitizer).
#if HWY_IS_TSAN || defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#define LOOPSPEC_TILE __attribute__((no_sanitize("thread")))
#else
constexpr bool kThreadSanitizer = false;
#define LOOPSPEC_TILE
#endif

template <class Weights, int kN, int kRows>
LOOPSPEC_TILE void Tile(const MatMulCall& call, int64_t n, int first_row) {
  const int64_t row_bytes = call.k * Weights::kBytes;
  const int64_t x_stride = (call.k + kStep - 1) / kStep * kStep;
  const float* x = reinterpret_cast<const float*>(call.packed) + first_row * x_stride;
  const std::byte* w[kN];
  HWY_UNROLL(8) for (int t = 0; t < kN; ++t) w[t] = call.weights + (n + t) * row_bytes;
  VF acc[kN][kRows];
  HWY_UNROLL(8) for (auto& tile : acc) {
    HWY_UNROLL(8) for (VF& a : tile) a = hn::Zero(kD);
  }
  int64_t k = 0;
  if (first_row == 0 && n + 2 * kN <= call.count) {  // the first rows fetch for those after them
    for (; k + kStep <= call.k; k += kStep) {
      if ((k * Weights::kBytes) % 64 < kStep * Weights::kBytes) {
        HWY_UNROLL(8) for (int t = 0; t < kN; ++t) __builtin_prefetch(w[t] + kN * row_bytes, 0, 1);
      }
      StepTile<Weights, kN, kRows>(w, x + k, x_stride, acc);
      HWY_UNROLL(8) for (int t = 0; t < kN; ++t) w[t] += kStep * Weights::kBytes;
    }
  }
  HWY_UNROLL(2) for (; k + kStep <= call.k; k += kStep) {
    StepTile<Weights, kN, kRows>(w, x + k, x_stride, acc);
    HWY_UNROLL(8) for (int t = 0; t < kN; ++t) w[t] += kStep * Weights::kBytes;
  }
  if (k < call.k) {
    alignas(64) std::byte tail[kN][kStep * Weights::kBytes] = {};
    HWY_UNROLL(8) for (int t = 0; t < kN; ++t) {
      std::memcpy(tail[t], w[t], static_cast<size_t>((call.k - k) * Weights::kBytes));
      w[t] = tail[t];
    }
    StepTile<Weights, kN, kRows>(w, x + k, x_stride, acc);
  }
  HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8) for (int t = 0; t < kN; ++t) {
      call.out[(first_row + r) * call.out_stride + n + t] =
          hn::GetLane(hn::SumOfLanes(kD, acc[t][r]));
    }
  }
}

template <class Weights, int kN, int kRows>
int64_t Outputs(const MatMulCall& call, int first_row, int64_t n) {
  for (; n + kN <= call.count; n += kN) Tile<Weights, kN, kRows>(call, n, first_row);
  return n;
}

// All outputs [n, n_end) for one block of rows.
template <class Weights, int kRows>
void RowBlock(const MatMulCall& call, int64_t n, int64_t n_end, int first_row) {
  constexpr int kWide =
      kRows == 1 ? 2 * kTileN : kTileN;  // a lone row needs more chains to hide the latency
  MatMulCall part = call;
  part.count = n_end;
  n = Outputs<Weights, kWide, kRows>(part, first_row, n);
  Outputs<Weights, 1, kRows>(part, first_row, n);
}

// Reads and writes what the call's tiles have read and written, outside of them.
void ShowToThreadSanitizer(const MatMulCall& call) {
  const int64_t padded = (call.k + kStep - 1) / kStep * kStep;
  const volatile float* x = reinterpret_cast<const float*>(call.packed);
  for (int64_t i = 0; i < call.rows * padded; ++i) (void)x[i];
  for (int row = 0; row < call.rows; ++row) {
    volatile float* out = call.out + row * call.out_stride;
    for (int64_t i = 0; i < call.count; ++i) out[i] = out[i];
  }
}

template <class Weights>
void Multiply(const MatMulCall& call) {
  // A band of weights small enough for the first-level cache, against all rows, then the next band.
  const int64_t band = std::clamp<int64_t>(32768 / (call.k * Weights::kBytes), 1, 64) * 8;
  for (int64_t n = 0; n < call.count; n += band) {
    const int64_t n_end = std::min(call.count, n + band);
    for (int row = 0; row < call.rows;) {
      switch (std::min(call.rows - row, kMaxRows)) {
        case 1:
          RowBlock<Weights, 1>(call, n, n_end, row);
          row += 1;
          break;
        case 2:
          RowBlock<Weights, 2>(call, n, n_end, row);
          row += 2;
          break;
        case 3:
          RowBlock<Weights, 3>(call, n, n_end, row);
          row += 3;
          break;
        default:
          RowBlock<Weights, kMaxRows>(call, n, n_end, row);
          row += kMaxRows;
          break;
      }
    }
  }
  if constexpr (kThreadSanitizer) ShowToThreadSanitizer(call);
}

const MatMulKernel* Kernel(DType weights, bool round) {
  static const MatMulKernel f32 = {
      hwy::TargetName(HWY_TARGET), 1, kStep, 4, 8, Pack<F32Weights, false>, Multiply<F32Weights>};
  static const MatMulKernel f16 = {
      hwy::TargetName(HWY_TARGET), 1, kStep, 4, 8, Pack<F16Weights, false>, Multiply<F16Weights>};
  static const MatMulKernel bf16 = {
      hwy::TargetName(HWY_TARGET), 1, kStep, 4, 8, Pack<BF16Weights, false>, Multiply<BF16Weights>};
  static const MatMulKernel rounded = {
      hwy::TargetName(HWY_TARGET), 1, kStep, 4, 8, Pack<BF16Weights, true>, Multiply<BF16Weights>};
  if (weights == DType::kF32) return &f32;
  if (weights == DType::kF16) return &f16;
  return round ? &rounded : &bf16;
}

#undef LOOPSPEC_TILE
}  // namespace HWY_NAMESPACE
}  // namespace loopspec::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace loopspec::cpu {

HWY_EXPORT(Kernel);

const MatMulKernel* HighwayKernel(DType weights, DType activations) {
  LOOPSPEC_CHECK(weights == DType::kF32 || weights == DType::kBF16 || weights == DType::kF16);
  return HWY_DYNAMIC_DISPATCH(Kernel)(weights, activations == DType::kBF16);
}

}  // namespace loopspec::cpu
#endif

// SDOT (Arm) with small groups of inputs: what follows the sums takes as long as they do, and so
// does the unpacking of 4-bit codes. So up to four rows go through the codes together, and with
// more than eight rows a chunk of codes first becomes a panel of bytes in the first cache, which
// all rows then use.
#include "backends/cpu/matmul_quantized.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>

#include "backends/cpu/sdot_row.h"

namespace loopspec::cpu {
namespace {

template <int kBits>
using Codes = DotCodes<kBits>;

constexpr int kSlab = 64;         // rows whose outputs are kept at a time
constexpr int kTileRows = 4;      // rows of a tile
constexpr int64_t kChunk = 1024;  // inputs whose codes stay in the first cache for all rows

// 16 outputs of a slab of rows.
struct DotTask {
  const QuantizedMatrix& m;
  const uint8_t* codes;
  const std::byte *scales, *biases;
  const std::byte* packed;
  int first;
  float (*out)[kQuantOutputs];

  DotRow Row(int row) const { return {packed, first + row, m.in}; }
};

// What the tiles of matrices differ by.
enum class Kind {
  kHalf,   // bf16 scales, groups of 32, codes stored as what they stand for, no biases
  kFloat,  // float32 scales, else the same
  kAny,
};

// Adds inputs [begin, end), whole groups, to 4 kQuads outputs from 4 `quad` on of kRows rows.
// `codes`: of these inputs. kBits: of a code of the matrix; kStored: of a code here, eight in a
// panel.
template <int kBits, int kStored, Kind kKind, int kRows, int kQuads>
void GroupTile(const DotTask& task, const uint8_t* codes, int64_t begin, int64_t end, int first_row,
               int quad) {
  using C = Codes<kBits>;
  const QuantizedMatrix& m = task.m;
  const int64_t group = kKind == Kind::kAny ? m.group : 32;
  const DType type = kKind == Kind::kAny    ? m.scale_type
                     : kKind == Kind::kHalf ? DType::kBF16
                                            : DType::kF32;
  const int64_t stride = DotRow::Bytes(m.in), padded = m.padded;
  const auto* x = reinterpret_cast<const int8_t*>(task.Row(first_row).digits) + begin;
  codes += 16 * quad;
  float32x4_t out[kRows][kQuads];
  for (int r = 0; r < kRows; ++r) {
    for (int q = 0; q < kQuads; ++q)
      out[r][q] = vld1q_f32(task.out[first_row + r] + 4 * (quad + q));
  }
  int64_t at = begin / group * kQuantOutputs + 4 * quad;  // of the group's scales
  for (int64_t k = begin; k < end; k += group, at += kQuantOutputs) {
    int32x4_t hi[kRows][kQuads], lo[kRows][kQuads];
    for (int r = 0; r < kRows; ++r) {
      int32x4_t hi_start = C::Start(), lo_start = C::Start();
      if constexpr (kKind == Kind::kAny) {
        const DotRow row = task.Row(first_row + r);
        const int32_t hi_less = C::Correction(m, row.HiSum(k, k + group));
        const int32_t lo_less = C::Correction(m, row.LoSum(k, k + group));
        hi_start = vaddq_s32(hi_start, vdupq_n_s32(hi_less));
        lo_start = vaddq_s32(lo_start, vdupq_n_s32(lo_less));
      }
      for (int q = 0; q < kQuads; ++q) {
        hi[r][q] = hi_start;
        lo[r][q] = lo_start;
      }
    }
    for (int64_t i = 0; i < group; i += 16, x += 16) {
      int8x16_t xh[kRows], xl[kRows];
      for (int r = 0; r < kRows; ++r) {
        xh[r] = vld1q_s8(x + r * stride);
        xl[r] = vld1q_s8(x + r * stride + padded);
      }
      // Four inputs; the lane of the digits must be known to the compiler.
      const auto step = [&]<int kLane>(const int8x16_t(&w)[kQuads]) {
        for (int q = 0; q < kQuads; ++q) {
          for (int r = 0; r < kRows; ++r) {
            hi[r][q] = vdotq_laneq_s32(hi[r][q], w[q], xh[r], kLane);
            lo[r][q] = vdotq_laneq_s32(lo[r][q], w[q], xl[r], kLane);
          }
        }
      };
      const auto two = [&]<int kLane>() {
        int8x16_t w0[kQuads], w1[kQuads];
        for (int q = 0; q < kQuads; ++q) {
          w0[q] = Codes<kStored>::First(codes + 16 * q);
          w1[q] = Codes<kStored>::Second(codes + 16 * q, 64);
        }
        step.template operator()<kLane>(w0);
        step.template operator()<kLane + 1>(w1);
        if constexpr (kStored == kBits) __builtin_prefetch(codes + 2048, 0, 3);
        codes += 16 * kStored;
      };
      two.template operator()<0>();
      two.template operator()<2>();
    }
    for (int q = 0; q < kQuads; ++q) {
      const float32x4_t scale = C::Table(task.scales, type, at + 4 * q);
      for (int r = 0; r < kRows; ++r) {
        const float32x4_t sum = vfmaq_n_f32(C::FromStart(lo[r][q]), C::FromStart(hi[r][q]), 256.0f);
        out[r][q] = vfmaq_f32(out[r][q], scale, sum);
      }
      if (kKind != Kind::kAny || task.biases == nullptr) continue;
      const float32x4_t bias = C::Table(task.biases, type, at + 4 * q);
      for (int r = 0; r < kRows; ++r)
        out[r][q] = vfmaq_n_f32(out[r][q], bias, task.Row(first_row + r).Sum(k, k + group));
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int q = 0; q < kQuads; ++q) vst1q_f32(task.out[first_row + r] + 4 * (quad + q), out[r][q]);
  }
}

// All 16 outputs of up to four rows: as many outputs at a time as leave registers for codes.
template <int kBits, int kStored, Kind kKind>
void GroupRows(const DotTask& task, const uint8_t* codes, int64_t begin, int64_t end, int row,
               int rows) {
  const auto tiles = [&]<int kRows, int kQuads>() {
    for (int quad = 0; quad < 4; quad += kQuads)
      GroupTile<kBits, kStored, kKind, kRows, kQuads>(task, codes, begin, end, row, quad);
  };
  switch (rows) {
    case 1:
      return tiles.template operator()<1, 4>();
    case 2:
      return tiles.template operator()<2, 2>();
    case 3:
      return tiles.template operator()<3, 1>();
    default:
      return tiles.template operator()<4, 1>();
  }
}

// Codes of `inputs` inputs, a byte each.
void WidenCodes(const uint8_t* codes, int64_t inputs, int8_t* panel) {
  for (int64_t i = 0; i < inputs; i += 8, codes += 64, panel += 128) {
    for (int q = 0; q < 4; ++q) {
      vst1q_s8(panel + 16 * q, Codes<4>::First(codes + 16 * q));
      vst1q_s8(panel + 64 + 16 * q, Codes<4>::Second(codes + 16 * q, 64));
    }
    __builtin_prefetch(codes + 2048, 0, 3);
  }
}

template <int kBits, Kind kKind>
void GroupSlab(const DotTask& task, int rows) {
  alignas(64) int8_t panel[kBits == 4 ? kChunk * kQuantOutputs : 1];
  const int64_t inputs = kChunk / task.m.group * task.m.group;  // whole groups
  for (int64_t k = 0; k < task.m.padded; k += inputs) {
    const int64_t end = std::min(task.m.padded, k + inputs);
    const uint8_t* codes = task.codes + k * 2 * kBits;
    const bool widen = kBits == 4 && rows > 2 * kTileRows;
    if (widen) WidenCodes(codes, end - k, panel);
    for (int row = 0; row < rows;) {  // tiles of rows, as even as can be
      const int tiles = (rows - row + kTileRows - 1) / kTileRows;
      const int some = (rows - row + tiles - 1) / tiles;
      if (widen) {
        const auto* widened = reinterpret_cast<const uint8_t*>(panel);
        GroupRows<kBits, 8, kKind>(task, widened, k, end, row, some);
      } else {
        GroupRows<kBits, kBits, kKind>(task, codes, k, end, row, some);
      }
      row += some;
    }
  }
}

template <int kBits>
void GroupMultiply(const MatMulCall& call) {
  const QuantizedMatrix& m = *call.quantized;
  auto slab = GroupSlab<kBits, Kind::kAny>;
  if (kBits == 4 && m.group == 32 && m.shift == 0 && m.biases == nullptr)
    slab = m.scale_type == DType::kBF16 ? GroupSlab<4, Kind::kHalf> : GroupSlab<4, Kind::kFloat>;
  ForBlocks<DotDigits>(call, [&](int64_t block, int lane, int lanes, int64_t to) {
    for (int first = 0; first < call.rows; first += kSlab) {
      const int rows = std::min(kSlab, call.rows - first);
      float out[kSlab][kQuantOutputs];
      for (int r = 0; r < rows; ++r) std::fill_n(out[r], kQuantOutputs, 0.0f);
      slab({m, reinterpret_cast<const uint8_t*>(m.codes + block * m.block_bytes()),
            m.scales + block * m.table_bytes(),
            m.biases == nullptr ? nullptr : m.biases + block * m.table_bytes(), call.packed, first,
            out},
           rows);
      for (int r = 0; r < rows; ++r) {
        const float scale = DotRow(call.packed, first + r, m.in).scale();
        float* at = call.out + (first + r) * call.out_stride + to;
        for (int i = 0; i < lanes; ++i) at[i] = out[r][lane + i] * scale;
      }
    }
  });
}

}  // namespace

void SdotGroups(const MatMulCall& call) {
  call.quantized->bits == 4 ? GroupMultiply<4>(call) : GroupMultiply<8>(call);
}

}  // namespace loopspec::cpu

#endif

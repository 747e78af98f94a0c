// SMMLA (Arm I8MM): two outputs of eight inputs by two rows of the same inputs, into a 2x2 matrix
// of int32 sums. The two rows are one digit of a pair of rows; a row alone fills both with its two
// digits.
//
// With one scale per output the sums of both digits stay apart until the end. With small groups of
// inputs what follows the sums takes as long as they do: there hi is summed first, shifted by eight
// bits, and lo summed on top. Sums of that size fit into int32, and to convert one of them rounds
// as often as the fused multiply-add of both does.
#include "backends/cpu/matmul_quantized.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_MATMUL_INT8)
#include <arm_neon.h>
#include <sys/auxv.h>

#include "backends/cpu/quantized_neon.h"

namespace loopspec::cpu {
namespace {

struct PairDigits {
  static constexpr int kBytes = 1;
  static constexpr int kRowBlock = 2;
  // Of two rows: [padded / 8][hi of the first x 8, of the second x 8, lo of both likewise]
  static void Store(std::byte* digits, int row, int64_t at, const int16_t* hi, const int16_t* lo) {
    auto* to = reinterpret_cast<int8_t*>(digits) + 4 * at + 8 * row;
    for (int64_t i = 0; i < kQuantSumStep; ++i) {
      to[i / 8 * 32 + i % 8] = static_cast<int8_t>(hi[i]);
      to[i / 8 * 32 + 16 + i % 8] = static_cast<int8_t>(lo[i]);
    }
  }
};
using PairRow = QuantizedRow<PairDigits>;
template <int kBits>
using Codes = NeonCodes<PairDigits, kBits>;

constexpr int kSlab = 64;  // rows whose sums are kept at a time
constexpr int kPairs = kSlab / 2;
constexpr int kTileRows = 6;  // 24 of 32 registers hold sums
constexpr int kOutPairs = kQuantOutputs / 2;
constexpr int64_t kChunk = 1024;      // inputs whose codes stay in the first cache for all tiles
constexpr int64_t kSmallGroup = 256;  // 256 * 255 * 32512 is the most that such a group can give
constexpr int64_t kPiece = 32;        // inputs of eight outputs that fill 16 registers
// Bytes ahead that codes are fetched into the second cache and into the first.
constexpr int64_t kFar = 8192, kNear = 1024;

// 16 outputs of a slab of rows.
struct PairTask {
  const QuantizedMatrix& m;
  const std::byte* packed;
  int first, rows;
  const uint8_t* codes;
  const std::byte *scales, *biases;

  PairTask(const MatMulCall& call, int64_t block, int first_row)
      : m(*call.quantized),
        packed(call.packed),
        first(first_row),
        rows(std::min(kSlab, call.rows - first_row)),
        codes(reinterpret_cast<const uint8_t*>(m.codes + block * m.block_bytes())),
        scales(m.scales + block * m.table_bytes()),
        biases(m.biases == nullptr ? nullptr : m.biases + block * m.table_bytes()) {}

  PairRow Row(int row) const { return {packed, first + row, m.in}; }
  // From there on 2 * PairRow::Bytes to the next pair.
  const int8_t* Digits(int row) const { return reinterpret_cast<const int8_t*>(Row(row).digits); }
};

// Both digits of the first row of a pair.
inline int8x16_t Single(const int8_t* x) {
  return vreinterpretq_s8_s64(
      vzip1q_s64(vreinterpretq_s64_s8(vld1q_s8(x)), vreinterpretq_s64_s8(vld1q_s8(x + 16))));
}

// Fetches as many bytes of codes as 16 inputs of kOuts times two outputs have: those of inputs that
// come soon into the first cache, and from `far` on into the second. Memory wants to be read line
// after line and all the time: where a chunk is passed over twice, each pass fetches half of the
// next one, not every second line of it.
template <int kBits, int kOuts>
[[gnu::always_inline]] inline void FetchAhead(const uint8_t* codes, const uint8_t* far) {
  for (int line = 0; line < 4 * kOuts * kBits; line += 64) {
    const uint8_t* at = codes + line % (16 * kOuts) + line / (16 * kOuts) * 128;
    __builtin_prefetch(far + line, 0, 2);
    __builtin_prefetch(at + (kOuts == kOutPairs ? kNear : kNear / 4), 0, 3);
  }
}

// ---- Large groups ----

// Sums of a tile: for every two outputs hi and lo of each pair of rows, then those of a row alone.
using WideSums = int32x4_t[kOutPairs][kTileRows];

template <int kBits, int kOuts, int kPairCount, int kSingle>
void WideTile(const uint8_t* codes, int64_t inputs, const int8_t* x, int64_t stride,
              const uint8_t* far, int32x4_t (*sums)[kTileRows]) {
  constexpr int kSums = 2 * kPairCount + kSingle;
  int32x4_t acc[kOuts][kSums];
  for (int o = 0; o < kOuts; ++o) {
    for (int n = 0; n < kSums; ++n) acc[o][n] = sums[o][n];
  }
  for (int64_t k = 0; k < inputs; k += 16) {
    if (far != nullptr) {
      FetchAhead<kBits, kOuts>(codes, far);
      far += 4 * kOuts * kBits;
    }
    for (int half = 0; half < 2; ++half) {
      int8x16_t digits[kSums];
      for (int p = 0; p < kPairCount; ++p) {
        digits[2 * p] = vld1q_s8(x + p * stride);
        digits[2 * p + 1] = vld1q_s8(x + p * stride + 16);
      }
      if (kSingle == 1) digits[kSums - 1] = Single(x + kPairCount * stride);
      for (int o = 0; o < kOuts; ++o) {
        const int8x16_t w = half == 0 ? Codes<kBits>::First(codes + 16 * o)
                                      : Codes<kBits>::Second(codes + 16 * o, 128);
        for (int n = 0; n < kSums; ++n) acc[o][n] = vmmlaq_s32(acc[o][n], w, digits[n]);
      }
      x += 32;
    }
    codes += 32 * kBits;
  }
  for (int o = 0; o < kOuts; ++o) {
    for (int n = 0; n < kSums; ++n) sums[o][n] = acc[o][n];
  }
}

// Rows of the next tile when `left` rows are left: as even as pairs allow.
inline int TileRows(int left) {
  const int tiles = (left + kTileRows - 1) / kTileRows;
  return std::min(left, ((left + tiles - 1) / tiles + 1) / 2 * 2);
}

// `far`: what to fetch meanwhile, as many bytes as the inputs have; null: nothing.
template <int kBits>
void WideTile(const uint8_t* codes, int64_t inputs, int rows, const int8_t* x, int64_t stride,
              const uint8_t* far, WideSums& sums) {
  // Many rows by eight outputs at a time: the other eight come from the first cache.
  const auto halves = [&](auto tile) {
    tile(codes, inputs, x, stride, far, sums);
    tile(codes + 64, inputs, x, stride, far == nullptr ? nullptr : far + inputs * kBits,
         sums + kOutPairs / 2);
  };
  switch (rows) {
    case 1:
      return WideTile<kBits, 8, 0, 1>(codes, inputs, x, stride, far, sums);
    case 2:
      return WideTile<kBits, 8, 1, 0>(codes, inputs, x, stride, far, sums);
    case 3:
      return WideTile<kBits, 8, 1, 1>(codes, inputs, x, stride, far, sums);
    case 4:
      return halves(WideTile<kBits, 4, 2, 0>);
    case 5:
      return halves(WideTile<kBits, 4, 2, 1>);
    default:
      return halves(WideTile<kBits, 4, 3, 0>);
  }
}

template <int kBits>
void AddWideGroup(const PairTask& task, int64_t g, int first, int rows, const WideSums& sums,
                  float32x4_t (*out)[4]) {
  const QuantizedMatrix& m = task.m;
  const int64_t begin = g * m.group, end = begin + m.group;
  for (int r = 0; r < rows; ++r) {
    const PairRow row = task.Row(first + r);
    const int32x4_t hi_less = vdupq_n_s32(Codes<kBits>::Correction(m, row.HiSum(begin, end)));
    const int32x4_t lo_less = vdupq_n_s32(Codes<kBits>::Correction(m, row.LoSum(begin, end)));
    const bool single = r == rows - 1 && rows % 2 == 1;
    const int n = r / 2 * 2;
    for (int q = 0; q < 4; ++q) {
      const auto *a = sums[2 * q], *b = sums[2 * q + 1];
      const int32x4_t hi = r % 2 == 0 ? vuzp1q_s32(a[n], b[n]) : vuzp2q_s32(a[n], b[n]);
      const int32x4_t lo = single       ? vuzp2q_s32(a[n], b[n])
                           : r % 2 == 0 ? vuzp1q_s32(a[n + 1], b[n + 1])
                                        : vuzp2q_s32(a[n + 1], b[n + 1]);
      const int64_t at = g * kQuantOutputs + 4 * q;
      float32x4_t& to = out[first + r][q];
      to = Codes<kBits>::AddGroup(to, vaddq_s32(hi, hi_less), vaddq_s32(lo, lo_less),
                                  Codes<kBits>::Table(task.scales, m.scale_type, at));
      if (task.biases != nullptr) {
        to = vfmaq_n_f32(to, Codes<kBits>::Table(task.biases, m.scale_type, at),
                         row.Sum(begin, end));
      }
    }
  }
}

template <int kBits>
void WideGroups(const PairTask& task, float32x4_t (*out)[4]) {
  const QuantizedMatrix& m = task.m;
  const int64_t stride = 2 * PairRow::Bytes(m.in);
  const int tiles = (task.rows + kTileRows - 1) / kTileRows;
  WideSums sums[(kSlab + kTileRows - 1) / kTileRows];
  for (int r = 0; r < task.rows; ++r) std::fill_n(out[r], 4, vdupq_n_f32(0.0f));
  for (int64_t g = 0; g < m.groups(); ++g) {
    for (int tile = 0; tile < tiles; ++tile) {
      for (auto& some : sums[tile]) std::fill_n(some, kTileRows, vdupq_n_s32(0));
    }
    const int64_t begin = g * m.group, end = begin + m.group;
    for (int64_t k = begin; k < end; k += kChunk) {
      const int64_t inputs = std::min(kChunk, end - k);
      int row = 0;
      for (int tile = 0; row < task.rows; ++tile) {
        const int rows = TileRows(task.rows - row);
        const uint8_t* codes = task.codes + k * 2 * kBits;
        WideTile<kBits>(codes, inputs, rows, task.Digits(row) + 4 * k, stride,
                        row == 0 ? codes + kChunk * 2 * kBits : nullptr, sums[tile]);
        row += rows;
      }
    }
    int row = 0;
    for (int tile = 0; row < task.rows; ++tile) {
      const int rows = TileRows(task.rows - row);
      AddWideGroup<kBits>(task, g, row, rows, sums[tile], out);
      row += rows;
    }
  }
}

// ---- Small groups ----

// Up to 32 inputs of eight outputs.
template <int kBits, int kSteps>
struct PieceCodes {
  int8x16_t w[kSteps][4];

  explicit PieceCodes(const uint8_t* codes) {
    for (int s = 0; s < kSteps; s += 2, codes += 32 * kBits) {
      for (int o = 0; o < 4; ++o) {
        w[s][o] = Codes<kBits>::First(codes + 16 * o);
        w[s + 1][o] = Codes<kBits>::Second(codes + 16 * o, 128);
      }
    }
  }
  // 256 hi + lo of kCount pairs of rows: [two outputs][two rows]
  template <int kCount>
  [[gnu::always_inline]] void Pairs(const int8_t* x, int64_t stride,
                                    int32x4_t (&sum)[kCount][4]) const {
    for (auto& pair : sum) std::fill_n(pair, 4, vdupq_n_s32(0));
    for (int s = 0; s < kSteps; ++s) {
      for (int p = 0; p < kCount; ++p) {
        const int8x16_t hi = vld1q_s8(x + p * stride + 32 * s);
        for (int o = 0; o < 4; ++o) sum[p][o] = vmmlaq_s32(sum[p][o], w[s][o], hi);
      }
    }
    for (auto& pair : sum) {
      for (int32x4_t& each : pair) each = vshlq_n_s32(each, 8);
    }
    for (int s = 0; s < kSteps; ++s) {
      for (int p = 0; p < kCount; ++p) {
        const int8x16_t lo = vld1q_s8(x + p * stride + 32 * s + 16);
        for (int o = 0; o < 4; ++o) sum[p][o] = vmmlaq_s32(sum[p][o], w[s][o], lo);
      }
    }
  }
  // The same of a row alone: [four outputs]
  [[gnu::always_inline]] void Alone(const int8_t* x, int32x4_t (&sum)[2]) const {
    int32x4_t both[4];
    for (int32x4_t& s : both) s = vdupq_n_s32(0);
    for (int s = 0; s < kSteps; ++s) {
      const int8x16_t digits = Single(x + 32 * s);
      for (int o = 0; o < 4; ++o) both[o] = vmmlaq_s32(both[o], w[s][o], digits);
    }
    for (int q = 0; q < 2; ++q) {
      sum[q] = vmlaq_n_s32(vuzp2q_s32(both[2 * q], both[2 * q + 1]),
                           vuzp1q_s32(both[2 * q], both[2 * q + 1]), 256);
    }
  }
};

// What is added up over a slab of rows.
struct SmallSums {
  float32x4_t pairs[kPairs][kOutPairs];                       // [two outputs][two rows]
  float32x4_t alone[4];                                       // [four outputs]
  int32x4_t pair_totals[kPairs][kOutPairs], alone_totals[4];  // of a group, before its last piece
};

// What is the same for all pieces; in registers, unlike the members of PairTask.
struct SmallTask {
  const uint8_t* codes;
  const std::byte *scales, *biases;
  const int8_t* x;  // digits of the first two rows
  int64_t stride;   // to those of the next two
  int rows;
  const PairTask& task;

  explicit SmallTask(const PairTask& from)
      : codes(from.codes),
        scales(from.scales),
        biases(from.biases),
        x(from.Digits(0)),
        stride(2 * PairRow::Bytes(from.m.in)),
        rows(from.rows),
        task(from) {}
};

// Adds what codes and row stand for beside their product: the shift of codes, before a sum is
// converted, and biases after it.
template <int kBits>
struct SmallRest {
  int32_t less;
  float inputs;

  SmallRest(const PairTask& task, int row_index, int64_t begin, int64_t end) {
    const PairRow row = task.Row(row_index);
    less = Codes<kBits>::Correction(task.m, 256 * row.HiSum(begin, end) + row.LoSum(begin, end));
    inputs = row.Sum(begin, end);
  }
};

// Inputs [k, k + 8 kSteps) of eight outputs. kWhole: they are the group. kPlain: no biases, and
// codes are stored as what they stand for.
template <int kBits, DType kScale, int kSteps, bool kWhole, bool kPlain>
[[gnu::always_inline]] inline void SmallPiece(const SmallTask& task, int64_t g, int64_t begin,
                                              int64_t end, int64_t k, int half, SmallSums& sums) {
  using C = Codes<kBits>;
  const bool first = kWhole || k == begin, last = kWhole || k + 8 * kSteps == end;
  const PieceCodes<kBits, kSteps> codes(task.codes + k * 2 * kBits + 64 * half);
  const int64_t at = g * kQuantOutputs + 8 * half;
  const int8_t* x = task.x + 4 * k;
  float32x4_t scale[2], bias[2] = {}, pair_scale[4];
  for (int q = 0; q < 2; ++q) {
    scale[q] = C::Table(task.scales, kScale, at + 4 * q);
    pair_scale[2 * q] = vzip1q_f32(scale[q], scale[q]);
    pair_scale[2 * q + 1] = vzip2q_f32(scale[q], scale[q]);
    if (!kPlain && task.biases != nullptr) bias[q] = C::Table(task.biases, kScale, at + 4 * q);
  }
  // Adds the sums of pair p, or keeps them until the group is whole.
  const auto add = [&](int p, int32x4_t(&sum)[4]) {
    int32x4_t* totals = sums.pair_totals[p] + 4 * half;
    if (!first) {
      for (int o = 0; o < 4; ++o) sum[o] = vaddq_s32(sum[o], totals[o]);
    }
    if (!last) {
      for (int o = 0; o < 4; ++o) totals[o] = sum[o];
      return;
    }
    float32x4_t* out = sums.pairs[p] + 4 * half;
    if constexpr (kPlain) {
      for (int o = 0; o < 4; ++o) out[o] = vfmaq_f32(out[o], pair_scale[o], C::ToFloat(sum[o]));
    } else {
      const SmallRest<kBits> even(task.task, 2 * p, begin, end),
          odd(task.task, 2 * p + 1, begin, end);
      const int32x2_t less = {even.less, odd.less};
      const float32x2_t inputs = {even.inputs, odd.inputs};
      for (int o = 0; o < 4; ++o) {
        const int32x4_t all = vaddq_s32(sum[o], vcombine_s32(less, less));
        out[o] = vfmaq_f32(out[o], pair_scale[o], C::ToFloat(all));
        if (task.biases == nullptr) continue;
        const float32x4_t b = o % 2 == 0 ? vzip1q_f32(bias[o / 2], bias[o / 2])
                                         : vzip2q_f32(bias[o / 2], bias[o / 2]);
        out[o] = vfmaq_f32(out[o], b, vcombine_f32(inputs, inputs));
      }
    }
  };
  // Two pairs at a time: four sums alone would wait for each other.
  const int pairs = task.rows / 2;
  int p = 0;
  for (; p + 1 < pairs; p += 2, x += 2 * task.stride) {
    int32x4_t sum[2][4];
    codes.template Pairs<2>(x, task.stride, sum);
    for (const int8_t* next : {x + 32 * kSteps, x + task.stride + 32 * kSteps}) {
      __builtin_prefetch(next, 0, 3);
      __builtin_prefetch(next + 64, 0, 3);
    }
    add(p, sum[0]);
    add(p + 1, sum[1]);
  }
  if (p < pairs) {
    int32x4_t sum[1][4];
    codes.template Pairs<1>(x, task.stride, sum);
    add(p, sum[0]);
    x += task.stride;
  }
  if (task.rows % 2 == 0) return;
  int32x4_t sum[2];
  codes.Alone(x, sum);
  int32x4_t* totals = sums.alone_totals + 2 * half;
  if (!first) {
    for (int q = 0; q < 2; ++q) sum[q] = vaddq_s32(sum[q], totals[q]);
  }
  if (!last) {
    for (int q = 0; q < 2; ++q) totals[q] = sum[q];
    return;
  }
  float32x4_t* out = sums.alone + 2 * half;
  if constexpr (kPlain) {
    for (int q = 0; q < 2; ++q) out[q] = vfmaq_f32(out[q], scale[q], C::ToFloat(sum[q]));
  } else {
    const SmallRest<kBits> row(task.task, task.rows - 1, begin, end);
    for (int q = 0; q < 2; ++q) {
      const int32x4_t all = vaddq_s32(sum[q], vdupq_n_s32(row.less));
      out[q] = vfmaq_f32(out[q], scale[q], C::ToFloat(all));
      if (task.biases != nullptr) out[q] = vfmaq_n_f32(out[q], bias[q], row.inputs);
    }
  }
}

template <int kBits, DType kScale, bool kWhole, bool kPlain>
void AddSmallGroups(const PairTask& from, SmallSums& sums) {
  const SmallTask task(from);
  const int64_t group = from.m.group, groups = from.m.groups();
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t begin = g * group, end = begin + group;
    for (int64_t k = begin; k < end; k += kPiece) {
      for (int line = 0; line < 64 * kBits; line += 64)
        __builtin_prefetch(task.codes + k * 2 * kBits + kNear + line, 0, 3);
      for (int half = 0; half < 2; ++half) {
        if (kWhole || end - k >= kPiece) {
          SmallPiece<kBits, kScale, 4, kWhole, kPlain>(task, g, begin, end, k, half, sums);
        } else {
          SmallPiece<kBits, kScale, 2, kWhole, kPlain>(task, g, begin, end, k, half, sums);
        }
      }
    }
  }
}

// Up to four rows, with codes that are stored as what they stand for and without biases: kOuts
// times two outputs from `first_out` on, whose sums stay in registers. kGroup: inputs of a group,
// or 0 for any.
template <int kBits, DType kScale, int64_t kGroup, int kOuts, int kPairCount, int kSingle>
void FewRows(const PairTask& task, int row, int first_out, float32x4_t (*out)[4]) {
  using C = Codes<kBits>;
  constexpr int kSums = 2 * kPairCount + kSingle;  // of hi and of lo of each pair, of a row alone
  const int64_t group = kGroup == 0 ? task.m.group : kGroup, groups = task.m.groups();
  const int64_t stride = 2 * PairRow::Bytes(task.m.in);
  const uint8_t* codes = task.codes + 8 * first_out;
  const int8_t* x = task.Digits(row);
  float32x4_t pairs[kPairCount + 1][kOuts] = {};    // two outputs by two rows
  float32x4_t alone[kSingle * kOuts / 2 + 1] = {};  // four outputs
  for (int64_t g = 0; g < groups; ++g) {
    int32x4_t sums[kSums][kOuts];
    for (auto& some : sums) std::fill_n(some, kOuts, vdupq_n_s32(0));
    for (int64_t k = 0; k < group; k += 16, codes += 32 * kBits, x += 64) {
      FetchAhead<kBits, kOuts>(codes, codes + kFar);
      for (int half = 0; half < 2; ++half) {
        int8x16_t digits[kSums];
        for (int n = 0; n < 2 * kPairCount; ++n)
          digits[n] = vld1q_s8(x + n / 2 * stride + 32 * half + n % 2 * 16);
        if (kSingle == 1) digits[kSums - 1] = Single(x + kPairCount * stride + 32 * half);
        for (int o = 0; o < kOuts; ++o) {
          const int8x16_t w = half == 0 ? C::First(codes + 16 * o) : C::Second(codes + 16 * o, 128);
          for (int n = 0; n < kSums; ++n) sums[n][o] = vmmlaq_s32(sums[n][o], w, digits[n]);
        }
      }
    }
    for (int q = 0; q < kOuts / 2; ++q) {
      const float32x4_t scale =
          C::Table(task.scales, kScale, g * kQuantOutputs + first_out + 4 * q);
      for (int i = 0; i < 2 && kPairCount > 0; ++i) {
        const float32x4_t two = i == 0 ? vzip1q_f32(scale, scale) : vzip2q_f32(scale, scale);
        for (int p = 0; p < kPairCount; ++p) {
          const int32x4_t sum =
              vmlaq_n_s32(sums[2 * p + 1][2 * q + i], sums[2 * p][2 * q + i], 256);
          pairs[p][2 * q + i] = vfmaq_f32(pairs[p][2 * q + i], two, C::ToFloat(sum));
        }
      }
      if (kSingle == 1) {
        const int32x4_t a = sums[kSums - 1][2 * q], b = sums[kSums - 1][2 * q + 1];
        const int32x4_t sum = vmlaq_n_s32(vuzp2q_s32(a, b), vuzp1q_s32(a, b), 256);
        alone[q] = vfmaq_f32(alone[q], scale, C::ToFloat(sum));
      }
    }
  }
  for (int q = 0; q < kOuts / 2; ++q) {
    const int to = first_out / 4 + q;
    for (int p = 0; p < kPairCount; ++p) {
      out[row + 2 * p][to] = vuzp1q_f32(pairs[p][2 * q], pairs[p][2 * q + 1]);
      out[row + 2 * p + 1][to] = vuzp2q_f32(pairs[p][2 * q], pairs[p][2 * q + 1]);
    }
    if (kSingle == 1) out[row + 2 * kPairCount][to] = alone[q];
  }
}
// Rows by fours, then what is left.
template <int kBits, DType kScale, int64_t kGroup>
void FewRows(const PairTask& task, float32x4_t (*out)[4]) {
  int row = 0;
  const auto halves = [&](auto some) {
    for (const int first_out : {0, 8}) some(task, row, first_out, out);
  };
  for (; row + 4 <= task.rows; row += 4) halves(FewRows<kBits, kScale, kGroup, 4, 2, 0>);
  switch (task.rows - row) {
    case 3:
      return halves(FewRows<kBits, kScale, kGroup, 4, 1, 1>);
    case 2:
      return FewRows<kBits, kScale, kGroup, 8, 1, 0>(task, row, 0, out);
    case 1:
      return FewRows<kBits, kScale, kGroup, 8, 0, 1>(task, row, 0, out);
    default:
      return;
  }
}

template <int kBits>
void SmallGroups(const PairTask& task, float32x4_t (*out)[4]) {
  const QuantizedMatrix& m = task.m;
  const bool whole = m.group == kPiece, plain = m.shift == 0 && m.biases == nullptr;
  const bool half = m.scale_type == DType::kBF16;
  constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16;
  if (plain && (task.rows <= 4 || !whole)) {
    const auto few = whole ? (half ? FewRows<kBits, kBF16, kPiece> : FewRows<kBits, kF32, kPiece>)
                           : (half ? FewRows<kBits, kBF16, 0> : FewRows<kBits, kF32, 0>);
    return few(task, out);
  }
  SmallSums sums;
  for (int p = 0; p < task.rows / 2; ++p) std::fill_n(sums.pairs[p], kOutPairs, vdupq_n_f32(0.0f));
  std::fill_n(sums.alone, 4, vdupq_n_f32(0.0f));
  const auto add = whole && plain ? (half ? AddSmallGroups<kBits, kBF16, true, true>
                                          : AddSmallGroups<kBits, kF32, true, true>)
                                  : (half ? AddSmallGroups<kBits, kBF16, false, false>
                                          : AddSmallGroups<kBits, kF32, false, false>);
  add(task, sums);
  for (int r = 0; r < task.rows; ++r) {
    const float32x4_t* pair = sums.pairs[r / 2];
    const bool alone = r == task.rows - 1 && r % 2 == 0;
    for (int q = 0; q < 4; ++q) {
      out[r][q] = alone        ? sums.alone[q]
                  : r % 2 == 0 ? vuzp1q_f32(pair[2 * q], pair[2 * q + 1])
                               : vuzp2q_f32(pair[2 * q], pair[2 * q + 1]);
    }
  }
}

template <int kBits>
void PairMultiply(const MatMulCall& call) {
  const QuantizedMatrix& m = *call.quantized;
  ForBlocks<PairDigits>(call, [&](int64_t block, int lane, int lanes, int64_t to) {
    for (int first = 0; first < call.rows; first += kSlab) {
      const PairTask task(call, block, first);
      float32x4_t out[kSlab][4];
      (m.group <= kSmallGroup ? SmallGroups<kBits> : WideGroups<kBits>)(task, out);
      for (int r = 0; r < task.rows; ++r) {
        Codes<kBits>::Store(out[r], task.Row(r).scale(), lane, lanes,
                            call.out + (first + r) * call.out_stride + to);
      }
    }
  });
}

void Multiply(const MatMulCall& call) {
  call.quantized->bits == 4 ? PairMultiply<4>(call) : PairMultiply<8>(call);
}

const QuantizedKernel kSmmla = {{.name = "SMMLA",
                                 .row_block = PairDigits::kRowBlock,
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

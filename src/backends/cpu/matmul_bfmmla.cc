// BFMMLA (Arm): one instruction multiplies a 2x4 by a 4x2 bf16 matrix into a 2x2 float32 one.
//
// Weights: two rows of W, four inputs each, zipped from plain row-major loads. Rows: packed in
// pairs, [k/4][2][4], so that one load is an operand. A lone row is padded to a pair; its products
// are the same either way.
#include "backends/cpu/matmul.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include <arm_neon.h>
#include <sys/auxv.h>

#include <algorithm>
#include <cstring>

namespace loopspec::cpu {
namespace {

// A tile has 16 accumulators: 8 rows of W by up to 4 row pairs, or 4 rows of W by up to 8. Zipping
// the weights costs as much per tile row whatever the number of rows, so many rows are better done
// at once. The sums are the same.
constexpr int kFewPairs = 4;
constexpr int kManyPairs = 8;
constexpr int kGrain = 8;

void Pack(std::byte* packed, int row, int64_t k, int64_t k_begin, const float* values,
          int64_t count) {
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

inline bfloat16x8_t LoadWeights(const uint16_t* address) {
  return vreinterpretq_bf16_u16(vld1q_u16(address));
}

inline bfloat16x8_t Zip(bfloat16x8_t a, bfloat16x8_t b, bool high) {
  const uint64x2_t x = vreinterpretq_u64_bf16(a), y = vreinterpretq_u64_bf16(b);
  return vreinterpretq_bf16_u64(high ? vzip2q_u64(x, y) : vzip1q_u64(x, y));
}

// Where a tile's weights come from: straight from the rows of the checkpoint, zipped as they are
// loaded ...
template <int kTile>
struct RowSource {
  const uint16_t* w[kTile];

  RowSource(const MatMulCall& call, int64_t n) {
    // Past the last output the last row is computed again and thrown away.
    const auto* weights = reinterpret_cast<const uint16_t*>(call.weights);
    for (int t = 0; t < kTile; ++t)
      w[t] = weights + std::min<int64_t>(n + t, call.count - 1) * call.k;
  }
  [[gnu::always_inline]] void Load(int64_t k, bfloat16x8_t (&low)[kTile / 2],
                                   bfloat16x8_t (&high)[kTile / 2]) const {
    for (int t = 0; t < kTile / 2; ++t) {
      const bfloat16x8_t a = LoadWeights(w[2 * t] + k), b = LoadWeights(w[2 * t + 1] + k);
      low[t] = Zip(a, b, false);
      high[t] = Zip(a, b, true);
    }
  }
  // The next tile lies right behind: ask for it while this one is multiplied. Rows that are short
  // streams hide from the hardware's own prefetcher and are fetched all the way; long ones are only
  // brought nearer, as fetching so far ahead would fill the first level's few miss registers.
  [[gnu::always_inline]] void Fetch(int64_t k, int64_t inputs) const {
    if (k % 32 != 0) return;
    for (int t = 0; t < kTile; ++t) {
      const uint16_t* at = w[t] + k + kTile * inputs;
      if (inputs <= 512) {
        __builtin_prefetch(at, 0, 3);
      } else {
        __builtin_prefetch(at, 0, 1);
      }
    }
  }
  bool Fetches(const MatMulCall& call, int64_t n) const { return n + 2 * kTile <= call.count; }
  // The last inputs, padded: a load past the row could leave the file.
  void LoadTail(int64_t k, int64_t inputs, bfloat16x8_t (&low)[kTile / 2],
                bfloat16x8_t (&high)[kTile / 2]) {
    uint16_t tail[kTile][8] = {};
    for (int t = 0; t < kTile; ++t) {
      std::memcpy(tail[t], w[t] + k, static_cast<size_t>(inputs - k) * 2);
      w[t] = tail[t] - k;
    }
    Load(k, low, high);
  }
};

// ... or packed at load, eight rows together: [k/8][pair of rows][low, high half][8], one stream
// per tile. Fetched from two distances: near into the first level, and, when they come from memory,
// some 12 kB ahead into the second, whole tiles on, past the end of the matrix into the next one.
template <int kTile>
struct PackedSource {
  const uint16_t* w;
  const char* far = nullptr;  // the second distance

  PackedSource(const MatMulCall& call, int64_t n) {
    const int64_t padded = (call.k + 7) / 8 * 8;
    w = reinterpret_cast<const uint16_t*>(call.weights) + n / 8 * 8 * padded + n % 8 * 8;
    if (!call.from_memory) return;
    constexpr int64_t kFar = 12288;
    const int64_t tile_bytes = 16 * padded;
    const int64_t ahead = std::max<int64_t>(1, kFar / tile_bytes);
    const int64_t tile = n / 8 + ahead, tiles = (call.count + 7) / 8;
    const std::byte* base = tile < tiles           ? call.weights + tile * tile_bytes
                            : call.next != nullptr ? call.next + (tile - tiles) * tile_bytes
                                                   : nullptr;
    if (base != nullptr) far = reinterpret_cast<const char*>(base) + n % 8 * 16;
  }
  [[gnu::always_inline]] void Load(int64_t k, bfloat16x8_t (&low)[kTile / 2],
                                   bfloat16x8_t (&high)[kTile / 2]) const {
    for (int t = 0; t < kTile / 2; ++t) {
      low[t] = LoadWeights(w + k * 8 + t * 16);
      high[t] = LoadWeights(w + k * 8 + t * 16 + 8);
    }
  }
  [[gnu::always_inline]] void Fetch(int64_t k, int64_t) const {
    constexpr int64_t kNear = 1024;
    const char* near = reinterpret_cast<const char*>(w + k * 8) + kNear;
    __builtin_prefetch(near, 0, 3);
    if (kTile == 8) __builtin_prefetch(near + 64, 0, 3);
    if (far == nullptr) return;
    __builtin_prefetch(far + 16 * k, 0, 2);
    if (kTile == 8) __builtin_prefetch(far + 16 * k + 64, 0, 2);
  }
  bool Fetches(const MatMulCall&, int64_t) const { return true; }
  void LoadTail(int64_t k, int64_t, bfloat16x8_t (&low)[kTile / 2],
                bfloat16x8_t (&high)[kTile / 2]) {
    Load(k, low, high);
  }
};

// Eight inputs of every tile row against `Pairs` row pairs.
template <int kTile, int Pairs>
[[gnu::always_inline]] inline void Step(const bfloat16x8_t (&low)[kTile / 2],
                                        const bfloat16x8_t (&high)[kTile / 2], const uint16_t* x,
                                        int64_t pair_stride, float32x4_t (&acc)[kTile / 2][Pairs]) {
  for (int p = 0; p < Pairs; ++p) {
    const uint16_t* operand = x + p * pair_stride;
    const bfloat16x8_t x_low = LoadWeights(operand), x_high = LoadWeights(operand + 8);
    for (int t = 0; t < kTile / 2; ++t) acc[t][p] = vbfmmlaq_f32(acc[t][p], low[t], x_low);
    for (int t = 0; t < kTile / 2; ++t) acc[t][p] = vbfmmlaq_f32(acc[t][p], high[t], x_high);
  }
}

template <int kTile, int Pairs>
void StoreTile(const MatMulCall& call, int64_t n, int first_row,
               const float32x4_t (&acc)[kTile / 2][Pairs]) {
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

template <template <int> class Source, int kTile, int Pairs>
void Tile(const MatMulCall& call, int64_t n, int first_row, const uint16_t* x,
          int64_t pair_stride) {
  Source<kTile> source(call, n);
  float32x4_t acc[kTile / 2][Pairs];
  for (auto& tile : acc) {
    for (float32x4_t& a : tile) a = vdupq_n_f32(0.0f);
  }
  bfloat16x8_t low[kTile / 2], high[kTile / 2];
  const int64_t whole = call.k / 8 * 8;
  const bool fetch = first_row == 0 && source.Fetches(call, n);
  int64_t k = 0;
  for (; k < whole; k += 8) {
    if (fetch) source.Fetch(k, call.k);
    source.Load(k, low, high);
    Step<kTile, Pairs>(low, high, x + k * 2, pair_stride, acc);
  }
  if (k < call.k) {
    source.LoadTail(k, call.k, low, high);
    Step<kTile, Pairs>(low, high, x + k * 2, pair_stride, acc);
  }
  StoreTile<kTile, Pairs>(call, n, first_row, acc);
}

// Outputs [n, n + 8) for `Pairs` row pairs from the first.
template <template <int> class Source, int Pairs>
void Outputs(const MatMulCall& call, int64_t n, int first_row, const uint16_t* x,
             int64_t pair_stride) {
  if constexpr (Pairs <= kFewPairs) {
    Tile<Source, 8, Pairs>(call, n, first_row, x, pair_stride);
  } else {
    Tile<Source, 4, Pairs>(call, n, first_row, x, pair_stride);
    if (n + 4 < call.count) Tile<Source, 4, Pairs>(call, n + 4, first_row, x, pair_stride);
  }
}

template <template <int> class Source>
void Multiply(const MatMulCall& call) {
  const int64_t pair_stride = (call.k + 7) / 8 * 8 * 2;
  const auto* packed = reinterpret_cast<const uint16_t*>(call.packed);
  const int pairs = (call.rows + 1) / 2;
  for (int64_t n = 0; n < call.count; n += kGrain) {
    for (int p = 0; p < pairs; p += kManyPairs) {
      const uint16_t* x = packed + p * pair_stride;
      switch (std::min(pairs - p, kManyPairs)) {
        case 1:
          Outputs<Source, 1>(call, n, 2 * p, x, pair_stride);
          break;
        case 2:
          Outputs<Source, 2>(call, n, 2 * p, x, pair_stride);
          break;
        case 3:
          Outputs<Source, 3>(call, n, 2 * p, x, pair_stride);
          break;
        case 4:
          Outputs<Source, 4>(call, n, 2 * p, x, pair_stride);
          break;
        case 5:
          Outputs<Source, 5>(call, n, 2 * p, x, pair_stride);
          break;
        case 6:
          Outputs<Source, 6>(call, n, 2 * p, x, pair_stride);
          break;
        case 7:
          Outputs<Source, 7>(call, n, 2 * p, x, pair_stride);
          break;
        default:
          Outputs<Source, 8>(call, n, 2 * p, x, pair_stride);
          break;
      }
    }
  }
}

void PackWeights(const std::byte* weights, int64_t rows, int64_t k, std::byte* packed) {
  const auto* from = reinterpret_cast<const uint16_t*>(weights);
  auto* to = reinterpret_cast<uint16_t*>(packed);
  const int64_t padded = (k + 7) / 8 * 8;
  for (int64_t n = 0; n < rows; n += 8) {
    for (int64_t i = 0; i < padded; i += 4) {
      for (int64_t r = 0; r < 8; ++r) {
        uint16_t* at = to + n * padded + i / 8 * 64 + r / 2 * 16 + i % 8 / 4 * 8 + r % 2 * 4;
        for (int64_t j = 0; j < 4; ++j)
          at[j] = n + r < rows && i + j < k ? from[(n + r) * k + i + j] : uint16_t{0};
      }
    }
  }
}

size_t PackedWeightBytes(int64_t rows, int64_t k) {
  return static_cast<size_t>((rows + 7) / 8 * 8 * ((k + 7) / 8 * 8) * 2);
}

constexpr MatMulKernel kKernel = {"BFMMLA",
                                  2,
                                  8,
                                  2,
                                  kGrain,
                                  Pack,
                                  Multiply<RowSource>,
                                  PackWeights,
                                  PackedWeightBytes,
                                  Multiply<PackedSource>};

}  // namespace

const MatMulKernel* BfmmlaKernel() {
  constexpr unsigned long kHwcap2Bf16 = 1UL << 14;
  return (getauxval(AT_HWCAP2) & kHwcap2Bf16) != 0 ? &kKernel : nullptr;
}

}  // namespace loopspec::cpu

#else

namespace loopspec::cpu {
const MatMulKernel* BfmmlaKernel() {
  return nullptr;
}
}  // namespace loopspec::cpu

#endif

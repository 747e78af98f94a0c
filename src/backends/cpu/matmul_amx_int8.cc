// TDPBSUD (x86 AMX-INT8): a tile of digits, up to 16 rows of 64 inputs, by a tile of codes, 64
// inputs of 16 outputs, into int32 sums. Rows and weights are laid out as for VPDPBUSD, which
// takes over where rows are few.
//
// Small groups of 4-bit codes spend their time on what follows the sums, of which there are two for
// each group. There TDPBF16PS adds up both digits at once, as the whole numbers that they are:
// below 2^24 a float32 sum is as exact as an int32 one.
#include "backends/cpu/matmul_quantized.h"

#if defined(__x86_64__) && defined(__AMX_INT8__) && defined(__AMX_BF16__) && defined(__AVX512VNNI__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <numeric>

#include "backends/cpu/quantized_row.h"

namespace loopspec::cpu {
namespace {

struct AmxDigits : IntegerAndFloatDigits<AmxDigits> {};  // laid out as VnniDigits
using AmxRow = QuantizedRow<AmxDigits>;

constexpr int kTileRows = 16;
constexpr int kFewRows = 4;       // up to here VPDPBUSD is as fast
constexpr int kFewGroupRows = 8;  // with small groups

struct alignas(64) IntTileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes_per_row[16] = {};
  uint8_t rows[16] = {};
};

// Tiles: 0, 1 sums of hi and lo of the first 16 rows, 2, 3 of the second; 4 codes; 5 digits of the
// first rows, 6 of the second.
void Configure(int rows0, int rows1, int inputs) {
  IntTileConfig config;
  const auto set = [&](int tile, int rows, int bytes) {
    config.rows[tile] = static_cast<uint8_t>(rows);
    config.bytes_per_row[tile] = static_cast<uint16_t>(rows == 0 ? 0 : bytes);
  };
  set(0, rows0, 64);
  set(1, rows0, 64);
  set(2, rows1, 64);
  set(3, rows1, 64);
  set(4, inputs / 4, 64);
  set(5, rows0, inputs);
  set(6, rows1, inputs);
  // GCC takes the instruction to read eight bytes; all must be written.
  __asm__ volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

inline __m512 LoadTable(const std::byte* table, DType type, int64_t g) {
  if (type == DType::kF32) return _mm512_loadu_ps(table + g * kQuantOutputs * 4);
  const __m256i half =
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(table + g * kQuantOutputs * 2));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

// The codes of inputs [k, k + inputs) of a block, a byte each: where they are, or unpacked.
template <int kBits>
inline const std::byte* Codes(const std::byte* block, int64_t k, int inputs, std::byte* room) {
  if constexpr (kBits == 8) return block + k * kQuantOutputs;
  const std::byte* from = block + k * kQuantOutputs / 2;
  const __m512i low = _mm512_set1_epi8(15);
  for (int i = 0; i < inputs; i += 8) {
    const __m512i both = _mm512_loadu_si512(from + i * 8);
    _mm_prefetch(reinterpret_cast<const char*>(from) + i * 8 + 2048, _MM_HINT_T0);
    _mm512_store_si512(room + i * 16, _mm512_and_si512(both, low));
    _mm512_store_si512(room + i * 16 + 64, _mm512_and_si512(_mm512_srli_epi16(both, 4), low));
  }
  return room;
}

struct Sums {
  alignas(64) int32_t hi[kTileRows][kQuantOutputs], lo[kTileRows][kQuantOutputs];
};

// Adds one group to the outputs of `rows` rows.
inline void AddGroup(const QuantizedMatrix& m, const std::byte* scales, const std::byte* biases,
                     int64_t g, const Sums& sums, const std::byte* packed, int first_row, int rows,
                     __m512* out) {
  const int64_t begin = g * m.group, end = begin + m.group;
  const __m512 scale = LoadTable(scales, m.scale_type, g);
  const __m512 shift = _mm512_set1_ps(256.0f);
  const std::byte* base = packed + first_row * AmxRow::Bytes(m.in);
  const int64_t stride = AmxRow::Bytes(m.in);
  const AmxRow first(base, 0, m.in);
  const auto hi_at = reinterpret_cast<const std::byte*>(first.hi_sums) - base;
  const auto lo_at = reinterpret_cast<const std::byte*>(first.lo_sums) - base;
  const __m512 bias = biases == nullptr ? _mm512_setzero_ps() : LoadTable(biases, m.scale_type, g);
  for (int r = 0; r < rows; ++r) {
    const auto* hi_sums = reinterpret_cast<const int32_t*>(base + r * stride + hi_at);
    const auto* lo_sums = reinterpret_cast<const int32_t*>(base + r * stride + lo_at);
    const int32_t hi_sum = hi_sums[end / kQuantSumStep] - hi_sums[begin / kQuantSumStep];
    const int32_t lo_sum = lo_sums[end / kQuantSumStep] - lo_sums[begin / kQuantSumStep];
    const __m512i h =
        _mm512_sub_epi32(_mm512_load_si512(sums.hi[r]), _mm512_set1_epi32(m.shift * hi_sum));
    const __m512i l =
        _mm512_sub_epi32(_mm512_load_si512(sums.lo[r]), _mm512_set1_epi32(m.shift * lo_sum));
    const __m512 t = _mm512_fmadd_ps(_mm512_cvtepi32_ps(h), shift, _mm512_cvtepi32_ps(l));
    out[r] = _mm512_fmadd_ps(scale, t, out[r]);
    if (biases != nullptr) {
      const float sum = 256.0f * static_cast<float>(hi_sum) + static_cast<float>(lo_sum);
      out[r] = _mm512_fmadd_ps(bias, _mm512_set1_ps(sum), out[r]);
    }
  }
}

// Rows [first_row, first_row + rows0 + rows1) of 16 outputs.
template <int kBits>
void TileBlock(const MatMulCall& call, int64_t block, int first_row, int rows0, int rows1,
               int inputs, __m512* out) {
  const QuantizedMatrix& m = *call.quantized;
  const std::byte* codes = m.codes + block * m.block_bytes();
  const std::byte* scales = m.scales + block * m.table_bytes();
  const std::byte* biases = m.biases == nullptr ? nullptr : m.biases + block * m.table_bytes();
  const int64_t stride = AmxRow::Bytes(m.in);
  const std::byte* x0 = AmxRow(call.packed, first_row, m.in).digits;
  const std::byte* x1 = x0 + kTileRows * stride;
  alignas(64) std::byte room[2][1024];
  Sums sums;
  for (int r = 0; r < rows0 + rows1; ++r) out[r] = _mm512_setzero_ps();
  int turn = 0;
  for (int64_t g = 0; g < m.groups(); ++g) {
    const int64_t begin = g * m.group, end = begin + m.group;
    _tile_zero(0);
    _tile_zero(1);
    if (rows1 > 0) {
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int64_t k = begin; k < end; k += inputs) {
      turn ^= 1;
      _tile_loadd(4, Codes<kBits>(codes, k, inputs, room[turn]), 64);
      _tile_loadd(5, x0 + k, static_cast<size_t>(stride));
      _tile_dpbsud(0, 5, 4);
      _tile_loadd(5, x0 + m.padded + k, static_cast<size_t>(stride));
      _tile_dpbsud(1, 5, 4);
      if (rows1 == 0) continue;
      _tile_loadd(6, x1 + k, static_cast<size_t>(stride));
      _tile_dpbsud(2, 6, 4);
      _tile_loadd(6, x1 + m.padded + k, static_cast<size_t>(stride));
      _tile_dpbsud(3, 6, 4);
    }
    _tile_stored(0, sums.hi, 64);
    _tile_stored(1, sums.lo, 64);
    AddGroup(m, scales, biases, g, sums, call.packed, first_row, rows0, out);
    if (rows1 == 0) continue;
    _tile_stored(2, sums.hi, 64);
    _tile_stored(3, sums.lo, 64);
    AddGroup(m, scales, biases, g, sums, call.packed, first_row + kTileRows, rows1,
             out + kTileRows);
  }
}

template <int kBits>
void TileMultiply(const MatMulCall& call) {
  const QuantizedMatrix& m = *call.quantized;
  const int inputs = static_cast<int>(std::gcd(m.group, int64_t{64}));
  // Blocks of outputs small enough for the second-level cache against all rows, 32 at a time; tiles
  // are configured anew only where the number of rows changes.
  for (int row = 0; row < call.rows; row += 2 * kTileRows) {
    const int rows = std::min(call.rows - row, 2 * kTileRows);
    const int rows0 = std::min(rows, kTileRows), rows1 = rows - rows0;
    Configure(rows0, rows1, inputs);
    ForBlocks<AmxDigits>(call, [&](int64_t block, int lane, int lanes, int64_t to) {
      __m512 out[2 * kTileRows];
      TileBlock<kBits>(call, block, row, rows0, rows1, inputs, out);
      for (int r = 0; r < rows; ++r) {
        const __m512 y =
            _mm512_mul_ps(out[r], _mm512_set1_ps(AmxRow(call.packed, row + r, m.in).scale()));
        float* at = call.out + (row + r) * call.out_stride + to;
        if (lanes == kQuantOutputs) {
          _mm512_storeu_ps(at, y);
        } else {
          float values[kQuantOutputs];
          _mm512_storeu_ps(values, y);
          std::copy_n(values + lane, lanes, at);
        }
      }
    });
  }
  _tile_release();
}

// ---- Small groups of 4-bit codes ----

constexpr int kGroupRows = 64;  // rows at a time

// Whether the sum over a group of either digit times a code stays below 2^24, whatever they are.
bool SumsFitFloat(const QuantizedMatrix& m) {
  const int64_t code = std::max(m.shift, 15 - m.shift);
  return m.bits == 4 && m.group <= 32 && code <= 15 &&
         m.group * code * (256 * 127 + 128) < (1 << 24);
}

// Tiles: 0, 1 sums of 16 rows, 2, 3 codes of two blocks of outputs, 4 digits of 16 rows; 5 digits
// of the last rows, 6, 7 their sums.
void ConfigureGroups(int last_rows, int inputs) {
  IntTileConfig config;
  const auto set = [&](int tile, int rows, int bytes) {
    config.rows[tile] = static_cast<uint8_t>(rows);
    config.bytes_per_row[tile] = static_cast<uint16_t>(rows == 0 ? 0 : bytes);
  };
  set(0, kTileRows, 64);
  set(1, kTileRows, 64);
  set(2, inputs / 2, 64);
  set(3, inputs / 2, 64);
  set(4, kTileRows, inputs * 2);
  set(5, last_rows, inputs * 2);
  set(6, last_rows, 64);
  set(7, last_rows, 64);
  __asm__ volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

// Codes of a group as bf16 numbers: [inputs / 2][16 outputs][2]. `numbers`: what a code stands for,
// twice, so that a bit above the code does not matter.
inline void WidenCodes(const std::byte* from, int inputs, __m512i numbers, std::byte* room) {
  const __m512i first = _mm512_set1_epi32(static_cast<int>(0x80018000u));   // bytes 0, 1 as words
  const __m512i second = _mm512_set1_epi32(static_cast<int>(0x80038002u));  // bytes 2, 3
  const __m512i lanes = _mm512_set_epi32(0x0C0C0C0C, 0x08080808, 0x04040404, 0, 0x0C0C0C0C,
                                         0x08080808, 0x04040404, 0, 0x0C0C0C0C, 0x08080808,
                                         0x04040404, 0, 0x0C0C0C0C, 0x08080808, 0x04040404, 0);
  const __m512i low_bytes = _mm512_set1_epi32(0x00FF00FF);
  const __m512i pick0 = _mm512_or_si512(
      first, _mm512_and_si512(lanes, low_bytes));  // in each of the four lanes of 16 bytes
  const __m512i pick1 = _mm512_or_si512(second, _mm512_and_si512(lanes, low_bytes));
  for (int i = 0; i < inputs; i += 8) {
    const __m512i both = _mm512_loadu_si512(from + i * 8);
    _mm_prefetch(reinterpret_cast<const char*>(from) + i * 8 + 1024, _MM_HINT_T0);
    const __m512i x01 = _mm512_shuffle_epi8(both, pick0);
    const __m512i x23 = _mm512_shuffle_epi8(both, pick1);
    std::byte* to = room + i * 32;
    _mm512_store_si512(to, _mm512_permutexvar_epi16(x01, numbers));
    _mm512_store_si512(to + 64, _mm512_permutexvar_epi16(x23, numbers));
    _mm512_store_si512(to + 128, _mm512_permutexvar_epi16(_mm512_srli_epi16(x01, 4), numbers));
    _mm512_store_si512(to + 192, _mm512_permutexvar_epi16(_mm512_srli_epi16(x23, 4), numbers));
  }
}

inline __m512i NumbersOf(int shift) {
  alignas(64) uint16_t numbers[32];
  for (int i = 0; i < 32; ++i) {
    numbers[i] =
        static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(i % 16 - shift)) >> 16);
  }
  return _mm512_load_si512(numbers);
}

struct GroupSums {
  alignas(64) float at[2][kTileRows][kQuantOutputs];  // of one group
};
struct GroupOutputs {
  alignas(64) float at[2][kGroupRows][kQuantOutputs];
};

// Adds a group of two blocks of outputs to those of rows [first, first + rows).
template <bool kBias>
inline void AddGroups(const QuantizedMatrix& m, int64_t g, const GroupSums& sums,
                      const __m512 (&scale)[2], const __m512 (&bias)[2], const std::byte* packed,
                      int first_row, int first, int rows, GroupOutputs& out) {
  for (int r = 0; r < rows; ++r) {
    for (int b = 0; b < 2; ++b) {
      float* to = out.at[b][first + r];
      __m512 y = _mm512_fmadd_ps(scale[b], _mm512_load_ps(sums.at[b][r]), _mm512_load_ps(to));
      if constexpr (kBias) {
        const float sum =
            AmxRow(packed, first_row + first + r, m.in).Sum(g * m.group, (g + 1) * m.group);
        y = _mm512_fmadd_ps(bias[b], _mm512_set1_ps(sum), y);
      }
      _mm512_store_ps(to, y);
    }
  }
}

// Two blocks of 16 outputs; the second may be missing, and is then computed from the first.
template <bool kBias>
void GroupBlocks(const MatMulCall& call, int64_t block, bool two, int first_row, int rows,
                 GroupOutputs& out) {
  const QuantizedMatrix& m = *call.quantized;
  const auto inputs = static_cast<int>(m.group);
  const int64_t blocks[2] = {block, two ? block + 1 : block};
  const int64_t stride = AmxRow::Bytes(m.in);
  const std::byte* hi = AmxRow(call.packed, first_row, m.in).digits + 2 * m.padded;
  const std::byte* lo = hi + 2 * m.padded;
  const int whole = rows / kTileRows * kTileRows;
  const __m512i numbers = NumbersOf(m.shift);
  // What is written to memory for a tile, and what a tile wrote there, is read a good while later:
  // codes of the next group are widened, and sums of this one added, while tiles are multiplied.
  alignas(64) std::byte room[2][2][1024];
  GroupSums sums[kGroupRows / kTileRows];
  const auto widen = [&](int64_t g) {
    for (int b = 0; b < 2; ++b) {
      WidenCodes(m.codes + blocks[b] * m.block_bytes() + g * m.group * kQuantOutputs / 2, inputs,
                 numbers, room[g % 2][b]);
    }
  };
  for (int b = 0; b < 2; ++b)
    for (int r = 0; r < rows; ++r) _mm512_store_ps(out.at[b][r], _mm512_setzero_ps());
  widen(0);
  for (int64_t g = 0; g < m.groups(); ++g) {
    const int64_t k = g * m.group;
    _tile_loadd(2, room[g % 2][0], 64);
    _tile_loadd(3, room[g % 2][1], 64);
    for (int r = 0; r < whole; r += kTileRows) {
      GroupSums& sum = sums[r / kTileRows];
      _tile_zero(0);
      _tile_zero(1);
      _tile_loadd(4, hi + r * stride + 2 * k, static_cast<size_t>(stride));
      _tile_dpbf16ps(0, 4, 2);
      _tile_dpbf16ps(1, 4, 3);
      _tile_loadd(4, lo + r * stride + 2 * k, static_cast<size_t>(stride));
      _tile_dpbf16ps(0, 4, 2);
      _tile_dpbf16ps(1, 4, 3);
      _tile_stored(0, sum.at[0], 64);
      _tile_stored(1, sum.at[1], 64);
    }
    if (whole < rows) {
      GroupSums& sum = sums[whole / kTileRows];
      _tile_zero(6);
      _tile_zero(7);
      _tile_loadd(5, hi + whole * stride + 2 * k, static_cast<size_t>(stride));
      _tile_dpbf16ps(6, 5, 2);
      _tile_dpbf16ps(7, 5, 3);
      _tile_loadd(5, lo + whole * stride + 2 * k, static_cast<size_t>(stride));
      _tile_dpbf16ps(6, 5, 2);
      _tile_dpbf16ps(7, 5, 3);
      _tile_stored(6, sum.at[0], 64);
      _tile_stored(7, sum.at[1], 64);
    }
    if (g + 1 < m.groups()) widen(g + 1);
    __m512 scale[2], bias[2];
    for (int b = 0; b < 2; ++b) {
      scale[b] = LoadTable(m.scales + blocks[b] * m.table_bytes(), m.scale_type, g);
      bias[b] = kBias ? LoadTable(m.biases + blocks[b] * m.table_bytes(), m.scale_type, g)
                      : _mm512_setzero_ps();
    }
    for (int r = 0; r < rows; r += kTileRows) {
      AddGroups<kBias>(m, g, sums[r / kTileRows], scale, bias, call.packed, first_row, r,
                       std::min(kTileRows, rows - r), out);
    }
  }
}

void GroupMultiply(const MatMulCall& call) {
  const QuantizedMatrix& m = *call.quantized;
  const int64_t last = call.first + call.count;
  GroupOutputs out;
  for (int row = 0; row < call.rows; row += kGroupRows) {
    const int rows = std::min(call.rows - row, kGroupRows);
    ConfigureGroups(rows % kTileRows, static_cast<int>(m.group));
    for (int64_t block = call.first / kQuantOutputs; block * kQuantOutputs < last; block += 2) {
      const bool two = (block + 1) * kQuantOutputs < last;
      (m.biases == nullptr ? GroupBlocks<false> : GroupBlocks<true>)(call, block, two, row, rows,
                                                                     out);
      for (int b = 0; b < (two ? 2 : 1); ++b) {
        const int64_t begin = (block + b) * kQuantOutputs;
        const int64_t from = std::max(call.first, begin);
        const int64_t until = std::min(last, begin + kQuantOutputs);
        for (int r = 0; r < rows; ++r) {
          const float scale = AmxRow(call.packed, row + r, m.in).scale();
          float* to = call.out + (row + r) * call.out_stride + (from - call.first);
          for (int64_t i = 0; i < until - from; ++i) to[i] = out.at[b][r][from - begin + i] * scale;
        }
      }
    }
  }
  _tile_release();
}

void AmxMultiply(const MatMulCall& call) {
  const bool groups = SumsFitFloat(*call.quantized);
  if (call.rows <= (groups ? kFewGroupRows : kFewRows)) return VnniKernel()->kernel.multiply(call);
  if (groups) return GroupMultiply(call);
  call.quantized->bits == 4 ? TileMultiply<4>(call) : TileMultiply<8>(call);
}

const QuantizedKernel kAmxInt8 = {{.name = "AMX-INT8",
                                   .row_block = 1,
                                   .k_block = 16,
                                   .element_bytes = 1,
                                   .grain = kQuantOutputs,
                                   .pack = AmxRow::Pack,
                                   .multiply = AmxMultiply,
                                   .stage = AmxRow::Stage,
                                   .finish = AmxRow::Finish,
                                   .packed_row_bytes = AmxRow::Bytes},
                                  {.inner = 4, .nibbles = true, .is_signed = false}};

// The tile state is large, so Linux hands it out on request.
bool HasTiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kInt8 = 1u << 25, kTileBit = 1u << 24, kBf16 = 1u << 22;
  if ((d & kInt8) == 0 || (d & kTileBit) == 0 || (d & kBf16) == 0) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

const QuantizedKernel* AmxInt8Kernel() {
  static const bool usable = VnniKernel() != nullptr && HasTiles();
  return usable ? &kAmxInt8 : nullptr;
}

}  // namespace loopspec::cpu

#else

namespace loopspec::cpu {
const QuantizedKernel* AmxInt8Kernel() {
  return nullptr;
}
}  // namespace loopspec::cpu

#endif

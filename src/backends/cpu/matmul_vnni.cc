// VPDPBUSD (x86 AVX512-VNNI): 16 outputs, each the sum of four products of an unsigned code and a
// signed digit. Codes of 16 outputs and four inputs are one vector; a row's four digits are
// broadcast to all outputs. A tile is two such blocks by four rows: a broadcast is an instruction
// of its own, so it must serve more than one product. With more than eight rows 4-bit codes first
// become a panel of bytes in the first cache, which all rows then use.
#include "backends/cpu/matmul_quantized.h"

#if defined(__x86_64__) && defined(__AVX512VNNI__)
#include <immintrin.h>

#include "backends/cpu/quantized_row.h"

// The compiler must see every index of a tile's arrays as a number, or it keeps them in memory.
#if defined(__clang__)
#define LOOPSPEC_UNROLL _Pragma("unroll")
#else
#define LOOPSPEC_UNROLL _Pragma("GCC unroll 8")
#endif

namespace loopspec::cpu {
namespace {

struct VnniDigits : IntegerAndFloatDigits<VnniDigits> {};
using VnniRow = QuantizedRow<VnniDigits>;

constexpr int kTileRows = 4;        // rows of a tile
constexpr int kWideTileRows = 8;    // of one block, where codes are read but once
constexpr int kTileBlocks = 2;      // blocks of 16 outputs of a tile
constexpr int kSlab = 64;           // rows whose outputs are kept at a time
constexpr int64_t kStarts = 16384;  // groups of a slab's rows
static_assert(kStarts >= kQuantMaxInputs / kQuantSumStep);
constexpr int64_t kChunk = 512;      // inputs whose codes stay in the first cache for all rows
constexpr int64_t kAhead = 2048;     // bytes of codes fetched early
constexpr int64_t kBlockBytes = 64;  // of 16 outputs and four inputs, a byte each

inline __m512i Broadcast(const std::byte* at) {
  int32_t four;
  std::memcpy(&four, at, 4);
  return _mm512_set1_epi32(four);
}

inline __m512 LoadScales(const std::byte* table, DType type, int64_t g) {
  if (type == DType::kF32) return _mm512_loadu_ps(table + g * kQuantOutputs * 4);
  const __m256i half =
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(table + g * kQuantOutputs * 2));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

// What the sums of a group begin with, because codes are stored less their shift.
struct GroupStart {
  int32_t hi, lo;
};

// The outputs of up to kTileBlocks blocks and a slab of rows.
struct VnniTask {
  const QuantizedMatrix& m;
  int64_t block;
  const std::byte* packed;
  int first;
  const GroupStart* starts;  // [rows of the slab][groups]
  float (*out)[kTileBlocks * kQuantOutputs];
  int32_t (*sums)[2][kTileBlocks * kQuantOutputs];  // of hi and lo, where there is one group

  VnniRow Row(int row) const { return {packed, first + row, m.in}; }
  const std::byte* Codes(int b, int64_t k) const {
    return m.codes + (block + b) * m.block_bytes() + k * kQuantOutputs * m.bits / 8;
  }
  const std::byte* Scales(int b) const { return m.scales + (block + b) * m.table_bytes(); }
  const std::byte* Biases(int b) const {
    return m.biases == nullptr ? nullptr : m.biases + (block + b) * m.table_bytes();
  }
};

enum class Kind {
  kNibbles32,  // 4-bit codes less 8 in groups of 32, no biases: a group's sum of hi fits 16 bits
  kGroups,     // any others
  kWhole,      // one group: sums are kept from chunk to chunk
};

// Inputs [begin, end) of a tile's blocks.
struct Chunk {
  int64_t begin, end;
  const std::byte* codes[kTileBlocks];
  const std::byte* fetch[kTileBlocks];  // what will be read next
  int64_t fetch_step;                   // bytes of it for every eight inputs of a tile
};

// Eight inputs of a block: two vectors of codes.
template <int kBits>
inline void LoadCodes(const std::byte* codes, __m512i& w0, __m512i& w1) {
  if constexpr (kBits == 8) {
    w0 = _mm512_loadu_si512(codes);
    w1 = _mm512_loadu_si512(codes + kBlockBytes);
  } else {
    const __m512i both = _mm512_loadu_si512(codes), low = _mm512_set1_epi8(15);
    w0 = _mm512_and_si512(both, low);
    w1 = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
  }
}

inline void Fetch(const std::byte* at) {
  _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0);
}

// Adds the inputs of a chunk, whole groups or a part of the only one, to the outputs of kBlocks
// blocks and kRows rows. kStored: bits of a code at `codes`, eight in a panel; kBits: in the
// matrix. Meanwhile the tile fetches its share of the codes that will be read next, from `fetch_at`
// on, and with kFetchScales the scales of the blocks after its own: with several tiles of rows they
// are not what is waited for. A function of its own: inlined, it has too few registers.
template <int kBits, int kStored, Kind kKind, int kRows, int kBlocks, bool kFetchScales>
[[gnu::noinline]] void VnniTile(const VnniTask& task, const Chunk& chunk, int64_t fetch_at,
                                int first_row) {
  const int64_t begin = chunk.begin, end = chunk.end;
  const QuantizedMatrix& m = task.m;
  const int64_t group = kKind == Kind::kNibbles32 ? 32
                        : kKind == Kind::kWhole   ? end - begin
                                                  : m.group;
  const int64_t stride = VnniRow::Bytes(m.in), padded = m.padded, groups = m.groups();
  const std::byte* x = task.Row(first_row).digits + begin;
  const std::byte *w[kBlocks], *fetch[kBlocks], *scales[kBlocks], *biases[kBlocks];
  const DType type = m.scale_type;
  const int64_t scale_bytes = kQuantOutputs * static_cast<int64_t>(SizeOf(type));
  const int64_t next_scales = kBlocks * m.table_bytes();  // from a scale to that of the next tile
  const bool has_biases = kKind != Kind::kNibbles32 && m.biases != nullptr;
  __m512 out[kRows][kBlocks];
  LOOPSPEC_UNROLL for (int b = 0; b < kBlocks; ++b) {
    w[b] = chunk.codes[b];
    fetch[b] = chunk.fetch[b] + fetch_at;
    scales[b] = task.Scales(b);
    biases[b] = task.Biases(b);
    LOOPSPEC_UNROLL for (int r = 0; r < kRows; ++r) {
      out[r][b] = _mm512_loadu_ps(task.out[first_row + r] + b * kQuantOutputs);
    }
  }
  const __m512i shift = _mm512_set1_epi32(256);
  const GroupStart* starts = task.starts + first_row * groups;
  for (int64_t k = begin, g = begin / m.group; k < end; k += group, ++g) {
    __m512i hi[kRows][kBlocks], lo[kRows][kBlocks];
    LOOPSPEC_UNROLL for (int r = 0; r < kRows; ++r) {
      LOOPSPEC_UNROLL for (int b = 0; b < kBlocks; ++b) {
        hi[r][b] = _mm512_set1_epi32(starts[r * groups + g].hi);
        lo[r][b] = _mm512_set1_epi32(starts[r * groups + g].lo);
      }
    }
    if (kKind == Kind::kWhole && begin > 0) {
      LOOPSPEC_UNROLL for (int r = 0; r < kRows; ++r) {
        LOOPSPEC_UNROLL for (int b = 0; b < kBlocks; ++b) {
          hi[r][b] = _mm512_loadu_si512(task.sums[first_row + r][0] + b * kQuantOutputs);
          lo[r][b] = _mm512_loadu_si512(task.sums[first_row + r][1] + b * kQuantOutputs);
        }
      }
    }
    int64_t i = 0;
    do {  // groups are multiples of 16 inputs
      __m512i w0[kBlocks], w1[kBlocks];
      LOOPSPEC_UNROLL for (int b = 0; b < kBlocks; ++b) {
        LoadCodes<kStored>(w[b], w0[b], w1[b]);
        Fetch(fetch[b]);
        if constexpr (kBits == 8) Fetch(fetch[b] + 64);
        fetch[b] += chunk.fetch_step;
        w[b] += kBlockBytes * kStored / 4;
      }
      LOOPSPEC_UNROLL for (int r = 0; r < kRows; ++r) {
        const std::byte* digits = x + r * stride;
        const __m512i h0 = Broadcast(digits), l0 = Broadcast(digits + padded);
        LOOPSPEC_UNROLL for (int b = 0; b < kBlocks; ++b) {
          hi[r][b] = _mm512_dpbusd_epi32(hi[r][b], w0[b], h0);
          lo[r][b] = _mm512_dpbusd_epi32(lo[r][b], w0[b], l0);
        }
        const __m512i h1 = Broadcast(digits + 4), l1 = Broadcast(digits + padded + 4);
        LOOPSPEC_UNROLL for (int b = 0; b < kBlocks; ++b) {
          hi[r][b] = _mm512_dpbusd_epi32(hi[r][b], w1[b], h1);
          lo[r][b] = _mm512_dpbusd_epi32(lo[r][b], w1[b], l1);
        }
      }
      x += 8;
    } while ((i += 8) < group);
    if (kKind == Kind::kWhole && end < m.padded) {
      LOOPSPEC_UNROLL for (int r = 0; r < kRows; ++r) {
        LOOPSPEC_UNROLL for (int b = 0; b < kBlocks; ++b) {
          _mm512_storeu_si512(task.sums[first_row + r][0] + b * kQuantOutputs, hi[r][b]);
          _mm512_storeu_si512(task.sums[first_row + r][1] + b * kQuantOutputs, lo[r][b]);
        }
      }
      return;
    }
    LOOPSPEC_UNROLL for (int b = 0; b < kBlocks; ++b) {
      if constexpr (kFetchScales) Fetch(scales[b] + next_scales + g * scale_bytes);
      const __m512 scale = LoadScales(scales[b], type, g);
      LOOPSPEC_UNROLL for (int r = 0; r < kRows; ++r) {
        __m512 t;
        if constexpr (kKind == Kind::kNibbles32) {
          // The low halves of hi times 256, plus lo: below 2^24, so the float is exact too.
          t = _mm512_cvtepi32_ps(_mm512_dpwssd_epi32(lo[r][b], hi[r][b], shift));
        } else {
          t = _mm512_fmadd_ps(_mm512_cvtepi32_ps(hi[r][b]), _mm512_set1_ps(256.0f),
                              _mm512_cvtepi32_ps(lo[r][b]));
        }
        out[r][b] = _mm512_fmadd_ps(scale, t, out[r][b]);
      }
      if (!has_biases) continue;
      const __m512 bias = LoadScales(biases[b], type, g);
      LOOPSPEC_UNROLL for (int r = 0; r < kRows; ++r) {
        const float sum = task.Row(first_row + r).Sum(g * m.group, (g + 1) * m.group);
        out[r][b] = _mm512_fmadd_ps(bias, _mm512_set1_ps(sum), out[r][b]);
      }
    }
  }
  LOOPSPEC_UNROLL for (int r = 0; r < kRows; ++r) {
    LOOPSPEC_UNROLL for (int b = 0; b < kBlocks; ++b) {
      _mm512_storeu_ps(task.out[first_row + r] + b * kQuantOutputs, out[r][b]);
    }
  }
}

// Five to eight rows of int8 with a scale per output wait for codes more than for products: one
// pass over them, a block at a time, is quicker than two passes over two blocks.
template <int kBits, Kind kKind>
bool OnePass(int rows) {
  return kBits == 8 && kKind == Kind::kWhole && rows > kTileRows && rows <= kWideTileRows;
}

// A chunk of all rows, in tiles of up to kMostRows.
template <int kBits, int kStored, Kind kKind, int kBlocks, int kMostRows, bool kFetchScales>
void VnniTiles(const VnniTask& task, const Chunk& chunk, int rows) {
  int64_t fetch_at = 0;
  for (int row = 0; row < rows;) {  // tiles of rows, as even as can be
    const int tiles = (rows - row + kMostRows - 1) / kMostRows;
    const int some = (rows - row + tiles - 1) / tiles;
    const auto tile = [&]<int kRows>() {
      VnniTile<kBits, kStored, kKind, kRows, kBlocks, kFetchScales>(task, chunk, fetch_at, row);
    };
    switch (some) {
      case 1:
        tile.template operator()<1>();
        break;
      case 2:
        tile.template operator()<2>();
        break;
      case 3:
        tile.template operator()<3>();
        break;
      case 4:
        tile.template operator()<4>();
        break;
      default:
        if constexpr (kMostRows == kWideTileRows) {
          if (some == 5) tile.template operator()<5>();
          if (some == 6) tile.template operator()<6>();
          if (some == 7) tile.template operator()<7>();
          if (some == 8) tile.template operator()<8>();
        }
    }
    row += some;
    fetch_at += (chunk.end - chunk.begin) / 8 * chunk.fetch_step;
  }
}

// Codes of `inputs` inputs, a byte each.
void Widen(const std::byte* codes, int64_t inputs, std::byte* panel) {
  for (int64_t i = 0; i < inputs; i += 8, codes += kBlockBytes, panel += 2 * kBlockBytes) {
    __m512i w0, w1;
    LoadCodes<4>(codes, w0, w1);
    _mm512_store_si512(panel, w0);
    _mm512_store_si512(panel + kBlockBytes, w1);
  }
}

template <int kBits, Kind kKind, int kBlocks, int kMostRows>
void VnniSlab(const VnniTask& task, int rows) {
  const QuantizedMatrix& m = task.m;
  alignas(64) std::byte panel[kBits == 4 ? kBlocks : 1][kChunk * kQuantOutputs];
  int64_t inputs =
      kKind == Kind::kWhole ? kChunk : std::max(kChunk / m.group, int64_t{1}) * m.group;
  // A single tile of rows fetches kAhead bytes ahead. With groups it does its last inputs, whose
  // codes are as many bytes, by themselves, and fetches the beginning of the next blocks meanwhile.
  int64_t tail = kAhead * 8 / (kQuantOutputs * kBits);
  tail = (tail + m.group - 1) / m.group * m.group;
  const bool has_tail = kKind != Kind::kWhole && tail < m.padded;
  const bool widen = kBits == 4 && rows > 2 * kTileRows && inputs <= kChunk;
  const int tiles = (rows + kMostRows - 1) / kMostRows;
  Chunk chunk;
  chunk.fetch_step = kBlockBytes * kBits / 4 / tiles;
  for (int64_t k = 0; k < m.padded; k = chunk.end) {
    chunk.begin = k;
    chunk.end = std::min(m.padded, k + inputs);
    if (tiles == 1) chunk.end = k == 0 && has_tail ? m.padded - tail : m.padded;
    for (int b = 0; b < kBlocks; ++b) {
      const std::byte* codes = task.Codes(b, k);
      chunk.codes[b] = widen ? panel[b] : codes;
      if (widen) Widen(codes, chunk.end - k, panel[b]);
      chunk.fetch[b] = tiles == 1 && (k == 0 || !has_tail) ? codes + kAhead
                       : chunk.end < m.padded              ? task.Codes(b, chunk.end)
                                                           : task.Codes(b + kBlocks, 0);
    }
    if (widen) {
      VnniTiles<kBits, 8, kKind, kBlocks, kMostRows, false>(task, chunk, rows);
    } else if (tiles == 1) {
      VnniTiles<kBits, kBits, kKind, kBlocks, kMostRows, kKind != Kind::kWhole>(task, chunk, rows);
    } else {
      VnniTiles<kBits, kBits, kKind, kBlocks, kMostRows, false>(task, chunk, rows);
    }
  }
}

template <int kBits, Kind kKind>
void VnniMultiply(const MatMulCall& call) {
  const QuantizedMatrix& m = *call.quantized;
  const int64_t groups = m.groups(), last = call.first + call.count;
  const int slab = static_cast<int>(std::min<int64_t>(kSlab, kStarts / groups));
  GroupStart starts[kStarts];
  for (int first = 0; first < call.rows; first += slab) {
    const int rows = std::min(slab, call.rows - first);
    for (int r = 0; r < rows; ++r) {
      const VnniRow row(call.packed, first + r, m.in);
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t begin = g * m.group, end = begin + m.group;
        starts[r * groups + g] = {-m.shift * row.HiSum(begin, end),
                                  -m.shift * row.LoSum(begin, end)};
      }
    }
    for (int64_t block = call.first / kQuantOutputs; block * kQuantOutputs < last;) {
      const bool one_pass = OnePass<kBits, kKind>(rows);
      const bool both = !one_pass && (block + 1) * kQuantOutputs < last;
      float out[kSlab][kTileBlocks * kQuantOutputs];
      for (int r = 0; r < rows; ++r) std::fill_n(out[r], kTileBlocks * kQuantOutputs, 0.0f);
      int32_t sums[kSlab][2][kTileBlocks * kQuantOutputs];
      const VnniTask task{m, block, call.packed, first, starts, out, sums};
      if (one_pass) {
        VnniSlab<kBits, kKind, 1, kWideTileRows>(task, rows);
      } else if (both) {
        VnniSlab<kBits, kKind, 2, kTileRows>(task, rows);
      } else {
        VnniSlab<kBits, kKind, 1, kTileRows>(task, rows);
      }
      const int64_t begin = block * kQuantOutputs;
      block += both ? 2 : 1;
      const int64_t from = std::max(call.first, begin);
      const int64_t until = std::min(last, block * kQuantOutputs);
      for (int r = 0; r < rows; ++r) {
        const float scale = task.Row(r).scale();
        float* at = call.out + (first + r) * call.out_stride + from - call.first;
        for (int64_t i = 0; i < until - from; ++i) at[i] = out[r][from - begin + i] * scale;
      }
    }
  }
}

void Multiply(const MatMulCall& call) {
  const QuantizedMatrix& m = *call.quantized;
  const bool whole = m.groups() == 1;
  if (m.bits == 8)
    return whole ? VnniMultiply<8, Kind::kWhole>(call) : VnniMultiply<8, Kind::kGroups>(call);
  if (m.group == 32 && m.shift == 8 && m.biases == nullptr)
    return VnniMultiply<4, Kind::kNibbles32>(call);
  whole ? VnniMultiply<4, Kind::kWhole>(call) : VnniMultiply<4, Kind::kGroups>(call);
}

const QuantizedKernel kVnni = {{.name = "AVX512-VNNI",
                                .row_block = 1,
                                .k_block = 16,
                                .element_bytes = 1,
                                .grain = kQuantOutputs,
                                .pack = VnniRow::Pack,
                                .multiply = Multiply,
                                .stage = VnniRow::Stage,
                                .finish = VnniRow::Finish,
                                .packed_row_bytes = VnniRow::Bytes},
                               {.inner = 4, .nibbles = true, .is_signed = false}};

}  // namespace

const QuantizedKernel* VnniKernel() {
  static const bool usable =
      __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return usable ? &kVnni : nullptr;
}

}  // namespace loopspec::cpu

#else

namespace loopspec::cpu {
const QuantizedKernel* VnniKernel() {
  return nullptr;
}
}  // namespace loopspec::cpu

#endif

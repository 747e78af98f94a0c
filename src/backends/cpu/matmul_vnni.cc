// VPDPBUSD (x86 AVX512-VNNI): 16 outputs, each the sum of four products of an unsigned code and a
// signed digit. Codes of 16 outputs and four inputs are one vector; a row's four digits are
// broadcast to all outputs.
#include "backends/cpu/matmul_quantized.h"

#if defined(__x86_64__) && defined(__AVX512VNNI__)
#include <immintrin.h>

#include "backends/cpu/quantized_row.h"

namespace loopspec::cpu {
namespace {

struct VnniDigits : IntegerAndFloatDigits<VnniDigits> {};
using VnniRow = QuantizedRow<VnniDigits>;

constexpr int kMaxRows = 8;       // at a time
constexpr int64_t kAhead = 2048;  // bytes of codes fetched early

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

// 16 outputs of kRows rows. kSplit: sums of a digit that are filled in turn, so that a lone row's
// products need not wait for each other.
template <int kBits, int kRows, int kSplit>
void VnniBlock(const QuantizedMatrix& m, int64_t block, const MatMulCall& call, int first_row,
               __m512 (&out)[kRows]) {
  const std::byte* codes = m.codes + block * m.block_bytes();
  const std::byte* scales = m.scales + block * m.table_bytes();
  const std::byte* biases = m.biases == nullptr ? nullptr : m.biases + block * m.table_bytes();
  const std::byte* digits[kRows];
  for (int r = 0; r < kRows; ++r) {
    digits[r] = VnniRow(call.packed, first_row + r, m.in).digits;
    out[r] = _mm512_setzero_ps();
  }
  const int64_t groups = m.groups(), padded = m.padded;
  const __m512 shift = _mm512_set1_ps(256.0f);
  const __m512i low = _mm512_set1_epi8(15);
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t begin = g * m.group, end = begin + m.group;
    __m512i hi[kRows][kSplit], lo[kRows][kSplit];
    for (int r = 0; r < kRows; ++r) {
      const VnniRow row(call.packed, first_row + r, m.in);
      for (int s = 0; s < kSplit; ++s) hi[r][s] = lo[r][s] = _mm512_setzero_si512();
      hi[r][0] = _mm512_set1_epi32(-m.shift * row.HiSum(begin, end));
      lo[r][0] = _mm512_set1_epi32(-m.shift * row.LoSum(begin, end));
    }
    // Eight inputs: two vectors of codes, or one of two halves.
    const auto step = [&](int64_t k, int s) {
      __m512i w0, w1;
      if constexpr (kBits == 8) {
        w0 = _mm512_loadu_si512(codes);
        w1 = _mm512_loadu_si512(codes + 64);
        _mm_prefetch(reinterpret_cast<const char*>(codes) + kAhead, _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(codes) + kAhead + 64, _MM_HINT_T0);
        codes += 128;
      } else {
        const __m512i both = _mm512_loadu_si512(codes);
        w0 = _mm512_and_si512(both, low);
        w1 = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
        _mm_prefetch(reinterpret_cast<const char*>(codes) + kAhead, _MM_HINT_T0);
        codes += 64;
      }
      for (int r = 0; r < kRows; ++r) {
        hi[r][s] = _mm512_dpbusd_epi32(hi[r][s], w0, Broadcast(digits[r] + k));
        lo[r][s] = _mm512_dpbusd_epi32(lo[r][s], w0, Broadcast(digits[r] + padded + k));
        hi[r][s] = _mm512_dpbusd_epi32(hi[r][s], w1, Broadcast(digits[r] + k + 4));
        lo[r][s] = _mm512_dpbusd_epi32(lo[r][s], w1, Broadcast(digits[r] + padded + k + 4));
      }
    };
    for (int64_t k = begin; k < end; k += 16) {
      step(k, 0);
      step(k + 8, kSplit - 1);
    }
    const __m512 scale = LoadScales(scales, m.scale_type, g);
    for (int r = 0; r < kRows; ++r) {
      __m512i h = hi[r][0], l = lo[r][0];
      for (int s = 1; s < kSplit; ++s) {
        h = _mm512_add_epi32(h, hi[r][s]);
        l = _mm512_add_epi32(l, lo[r][s]);
      }
      const __m512 t = _mm512_fmadd_ps(_mm512_cvtepi32_ps(h), shift, _mm512_cvtepi32_ps(l));
      out[r] = _mm512_fmadd_ps(scale, t, out[r]);
    }
    if (biases != nullptr) {
      const __m512 bias = LoadScales(biases, m.scale_type, g);
      for (int r = 0; r < kRows; ++r) {
        const float sum = VnniRow(call.packed, first_row + r, m.in).Sum(begin, end);
        out[r] = _mm512_fmadd_ps(bias, _mm512_set1_ps(sum), out[r]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    out[r] =
        _mm512_mul_ps(out[r], _mm512_set1_ps(VnniRow(call.packed, first_row + r, m.in).scale()));
  }
}

template <int kBits, int kRows>
void VnniRows(const MatMulCall& call, int64_t block, int lane, int lanes, int64_t to,
              int first_row) {
  constexpr int kSplit = kRows <= 4 ? 2 : 1;
  __m512 out[kRows];
  VnniBlock<kBits, kRows, kSplit>(*call.quantized, block, call, first_row, out);
  for (int r = 0; r < kRows; ++r) {
    float* at = call.out + (first_row + r) * call.out_stride + to;
    if (lanes == kQuantOutputs) {
      _mm512_storeu_ps(at, out[r]);
    } else {
      float values[kQuantOutputs];
      _mm512_storeu_ps(values, out[r]);
      std::copy_n(values + lane, lanes, at);
    }
  }
}

template <int kBits>
void VnniMultiply(const MatMulCall& call) {
  ForBlocks<VnniDigits>(call, [&](int64_t block, int lane, int lanes, int64_t to) {
    for (int row = 0; row < call.rows; row += kMaxRows) {
      switch (std::min(call.rows - row, kMaxRows)) {
        case 1:
          VnniRows<kBits, 1>(call, block, lane, lanes, to, row);
          break;
        case 2:
          VnniRows<kBits, 2>(call, block, lane, lanes, to, row);
          break;
        case 3:
          VnniRows<kBits, 3>(call, block, lane, lanes, to, row);
          break;
        case 4:
          VnniRows<kBits, 4>(call, block, lane, lanes, to, row);
          break;
        case 5:
          VnniRows<kBits, 5>(call, block, lane, lanes, to, row);
          break;
        case 6:
          VnniRows<kBits, 6>(call, block, lane, lanes, to, row);
          break;
        case 7:
          VnniRows<kBits, 7>(call, block, lane, lanes, to, row);
          break;
        default:
          VnniRows<kBits, 8>(call, block, lane, lanes, to, row);
          break;
      }
    }
  });
}

void Multiply(const MatMulCall& call) {
  call.quantized->bits == 4 ? VnniMultiply<4>(call) : VnniMultiply<8>(call);
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

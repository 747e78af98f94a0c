// VPMADDWD (x86 AVX2): 8 outputs, each the sum of two products of 16-bit numbers. Codes are widened
// as they are loaded: VPMADDUBSW on bytes would saturate.
#include "backends/cpu/matmul_quantized.h"

#if defined(__x86_64__) && defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

#include "backends/cpu/quantized_row.h"

namespace loopspec::cpu {
namespace {

struct WordDigits {
  static constexpr int kBytes = 2;
  // [padded / 2][hi, hi, lo, lo]
  static void Store(std::byte* digits, int64_t, int64_t at, const int16_t* hi, const int16_t* lo) {
    auto* to = reinterpret_cast<int16_t*>(digits) + 2 * at;
    for (int64_t i = 0; i < kQuantSumStep; i += 2) {
      to[2 * i] = hi[i];
      to[2 * i + 1] = hi[i + 1];
      to[2 * i + 2] = lo[i];
      to[2 * i + 3] = lo[i + 1];
    }
  }
};
using WordRow = QuantizedRow<WordDigits>;

constexpr int kMaxWordRows = 2;  // at a time: 8 sums of 16 registers

inline __m256i Pair(const std::byte* at) {
  int32_t two;
  std::memcpy(&two, at, 4);
  return _mm256_set1_epi32(two);
}

inline __m256 WordScales(const std::byte* table, DType type, int64_t i) {
  if (type == DType::kF32) return _mm256_loadu_ps(reinterpret_cast<const float*>(table) + i);
  const __m128i half = _mm_loadu_si128(
      reinterpret_cast<const __m128i*>(reinterpret_cast<const uint16_t*>(table) + i));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

template <int kBits, int kRows>
void WordBlock(const MatMulCall& call, int64_t block, int first_row, __m256 (&out)[kRows][2]) {
  const QuantizedMatrix& m = *call.quantized;
  const std::byte* codes = m.codes + block * m.block_bytes();
  const std::byte* scales = m.scales + block * m.table_bytes();
  const std::byte* biases = m.biases == nullptr ? nullptr : m.biases + block * m.table_bytes();
  const std::byte* digits[kRows];
  for (int r = 0; r < kRows; ++r) {
    digits[r] = WordRow(call.packed, first_row + r, m.in).digits;
    out[r][0] = out[r][1] = _mm256_setzero_ps();
  }
  const __m256i low = _mm256_set1_epi8(15);
  for (int64_t g = 0; g < m.groups(); ++g) {
    const int64_t begin = g * m.group, end = begin + m.group;
    __m256i hi[kRows][2], lo[kRows][2];
    for (int r = 0; r < kRows; ++r) {
      const WordRow row(call.packed, first_row + r, m.in);
      hi[r][0] = hi[r][1] = _mm256_set1_epi32(-m.shift * row.HiSum(begin, end));
      lo[r][0] = lo[r][1] = _mm256_set1_epi32(-m.shift * row.LoSum(begin, end));
    }
    // Two inputs of 16 outputs.
    const auto step = [&](__m256i bytes, int64_t k) {
      const __m256i w[2] = {_mm256_cvtepu8_epi16(_mm256_castsi256_si128(bytes)),
                            _mm256_cvtepu8_epi16(_mm256_extracti128_si256(bytes, 1))};
      for (int r = 0; r < kRows; ++r) {
        const __m256i xh = Pair(digits[r] + 4 * k), xl = Pair(digits[r] + 4 * k + 4);
        for (int half = 0; half < 2; ++half) {
          hi[r][half] = _mm256_add_epi32(hi[r][half], _mm256_madd_epi16(w[half], xh));
          lo[r][half] = _mm256_add_epi32(lo[r][half], _mm256_madd_epi16(w[half], xl));
        }
      }
    };
    for (int64_t k = begin; k < end; k += 4) {
      if constexpr (kBits == 8) {
        step(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)), k);
        step(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 32)), k + 2);
        _mm_prefetch(reinterpret_cast<const char*>(codes) + 2048, _MM_HINT_T0);
        codes += 64;
      } else {
        const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
        step(_mm256_and_si256(both, low), k);
        step(_mm256_and_si256(_mm256_srli_epi16(both, 4), low), k + 2);
        _mm_prefetch(reinterpret_cast<const char*>(codes) + 2048, _MM_HINT_T0);
        codes += 32;
      }
    }
    for (int half = 0; half < 2; ++half) {
      const __m256 scale = WordScales(scales, m.scale_type, g * kQuantOutputs + 8 * half);
      for (int r = 0; r < kRows; ++r) {
        const __m256 t = _mm256_fmadd_ps(_mm256_cvtepi32_ps(hi[r][half]), _mm256_set1_ps(256.0f),
                                         _mm256_cvtepi32_ps(lo[r][half]));
        out[r][half] = _mm256_fmadd_ps(scale, t, out[r][half]);
      }
      if (biases == nullptr) continue;
      const __m256 bias = WordScales(biases, m.scale_type, g * kQuantOutputs + 8 * half);
      for (int r = 0; r < kRows; ++r) {
        const float sum = WordRow(call.packed, first_row + r, m.in).Sum(begin, end);
        out[r][half] = _mm256_fmadd_ps(bias, _mm256_set1_ps(sum), out[r][half]);
      }
    }
  }
}

template <int kBits, int kRows>
void WordRows(const MatMulCall& call, int64_t block, int lane, int lanes, int64_t to,
              int first_row) {
  __m256 out[kRows][2];
  WordBlock<kBits, kRows>(call, block, first_row, out);
  for (int r = 0; r < kRows; ++r) {
    const __m256 scale =
        _mm256_set1_ps(WordRow(call.packed, first_row + r, call.quantized->in).scale());
    float values[kQuantOutputs];
    _mm256_storeu_ps(values, _mm256_mul_ps(out[r][0], scale));
    _mm256_storeu_ps(values + 8, _mm256_mul_ps(out[r][1], scale));
    std::copy_n(values + lane, lanes, call.out + (first_row + r) * call.out_stride + to);
  }
}

template <int kBits>
void WordMultiply(const MatMulCall& call) {
  ForBlocks<WordDigits>(call, [&](int64_t block, int lane, int lanes, int64_t to) {
    int row = 0;
    for (; row + kMaxWordRows <= call.rows; row += kMaxWordRows)
      WordRows<kBits, kMaxWordRows>(call, block, lane, lanes, to, row);
    if (row < call.rows) WordRows<kBits, 1>(call, block, lane, lanes, to, row);
  });
}

void Multiply(const MatMulCall& call) {
  call.quantized->bits == 4 ? WordMultiply<4>(call) : WordMultiply<8>(call);
}

const QuantizedKernel kAvx2 = {{.name = "AVX2",
                                .row_block = 1,
                                .k_block = 16,
                                .element_bytes = 1,
                                .grain = kQuantOutputs,
                                .pack = WordRow::Pack,
                                .multiply = Multiply,
                                .stage = WordRow::Stage,
                                .finish = WordRow::Finish,
                                .packed_row_bytes = WordRow::Bytes},
                               {.inner = 2, .nibbles = true, .is_signed = false}};

}  // namespace

const QuantizedKernel* Avx2Int16Kernel() {
  static const bool usable = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return usable ? &kAvx2 : nullptr;
}

}  // namespace loopspec::cpu

#else

namespace loopspec::cpu {
const QuantizedKernel* Avx2Int16Kernel() {
  return nullptr;
}
}  // namespace loopspec::cpu

#endif

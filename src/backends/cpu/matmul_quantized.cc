#include "backends/cpu/matmul_quantized.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/error.h"

namespace loopspec::cpu {
namespace {

bool FitsBF16(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return (std::bit_cast<uint32_t>(value) & 0xFFFFu) == 0; });
}

void StoreTable(std::byte* to, DType type, int64_t i, float value) {
  if (type == DType::kF32) {
    std::memcpy(to + i * 4, &value, 4);
  } else {
    const uint16_t half = FloatToBF16(value);
    std::memcpy(to + i * 2, &half, 2);
  }
}

struct Decoded {
  std::vector<uint8_t> codes;
  std::vector<float> scales, biases;

  explicit Decoded(const QuantizedTensor& from)
      : codes(static_cast<size_t>(from.columns)),
        scales(static_cast<size_t>(from.groups())),
        biases(static_cast<size_t>(from.groups())) {}
};

// Whether all scales and biases are bf16 numbers.
bool TablesFitBF16(const QuantizedTensor& from) {
  if (BlockOf(from.layout).bytes == 0 && from.zeros == nullptr &&
      from.scales.type == DType::kBF16 &&
      (from.biases.data == nullptr || from.biases.type == DType::kBF16)) {
    return true;
  }
  Decoded row(from);
  for (int64_t r = 0; r < from.rows; ++r) {
    from.DecodeRow(r, row.codes.data(), row.scales.data(), row.biases.data());
    if (!FitsBF16(row.scales) || (from.has_bias() && !FitsBF16(row.biases))) return false;
  }
  return true;
}

}  // namespace

PackedQuantized PackQuantized(const QuantizedTensor& from, const CodeLayout& layout) {
  const bool per_output = from.group == from.columns;
  if (!per_output &&
      (from.group % kQuantSumStep != 0 || PaddedInputs(from.columns) % from.group != 0)) {
    Fail("a quantized matrix of {} inputs has groups of {}, expected 16, 32, 64, 128 or all inputs",
         from.columns, from.group);
  }
  if (from.columns > kQuantMaxInputs)
    Fail("a quantized matrix has {} inputs, at most {} are supported", from.columns,
         kQuantMaxInputs);
  PackedQuantized packed;
  QuantizedMatrix& m = packed.matrix;
  m.out = from.rows;
  m.in = from.columns;
  m.padded = PaddedInputs(from.columns);
  m.group = per_output ? m.padded : from.group;
  m.bits = from.bits() == 4 && layout.nibbles ? 4 : 8;
  const int less = !layout.is_signed ? 0 : m.bits == 8 ? 128 : 8;
  m.shift = from.center() - less;
  m.scale_type = TablesFitBF16(from) ? DType::kBF16 : DType::kF32;
  const int64_t codes = m.blocks() * m.block_bytes(), table = m.blocks() * m.table_bytes();
  // A kernel may fetch some way past the end.
  packed.memory = LazyBuffer(static_cast<size_t>(codes + table * (from.has_bias() ? 2 : 1) + 64));
  std::byte* to = packed.memory.data();
  std::byte* scales = to + codes;
  std::byte* biases = from.has_bias() ? scales + table : nullptr;
  m.codes = to;
  m.scales = scales;
  m.biases = biases;

  Decoded row(from);
  const int64_t unit = int64_t{kQuantOutputs} * layout.inner;  // codes of a block
  const auto center = static_cast<uint8_t>(from.center());
  std::vector<uint8_t> codes_padded(static_cast<size_t>(m.padded));
  for (int64_t o = 0; o < m.blocks() * kQuantOutputs; ++o) {
    std::fill(codes_padded.begin(), codes_padded.end(), center);
    if (o < m.out) {
      from.DecodeRow(o, row.codes.data(), row.scales.data(), row.biases.data());
      std::copy(row.codes.begin(), row.codes.end(), codes_padded.begin());
    }
    std::byte* block = to + o / kQuantOutputs * m.block_bytes();
    const int64_t lane = o % kQuantOutputs * layout.inner;
    for (int64_t i = 0; i < m.padded; i += layout.inner) {
      const int64_t step = i / layout.inner;
      if (m.bits == 4) {
        std::byte* at = block + step / 2 * unit + lane;
        for (int64_t j = 0; j < layout.inner; ++j) {
          const auto code =
              static_cast<std::byte>((codes_padded[static_cast<size_t>(i + j)] - less) & 15);
          at[j] = step % 2 == 0 ? code : at[j] | code << 4;
        }
      } else {
        std::byte* at = block + step * unit + lane;
        for (int64_t j = 0; j < layout.inner; ++j)
          at[j] = static_cast<std::byte>(codes_padded[static_cast<size_t>(i + j)] - less);
      }
    }
    const int64_t groups = m.groups();  // those past the last input keep a scale of zero
    for (int64_t g = 0; g < from.groups() && o < m.out; ++g) {
      const int64_t at = (o / kQuantOutputs * groups + g) * kQuantOutputs + o % kQuantOutputs;
      StoreTable(scales, m.scale_type, at, row.scales[static_cast<size_t>(g)]);
      if (biases != nullptr)
        StoreTable(biases, m.scale_type, at, row.biases[static_cast<size_t>(g)]);
    }
  }
  return packed;
}

std::span<const QuantizedKernel* const> AllQuantized() {
  static const std::vector<const QuantizedKernel*> list = [] {
    std::vector<const QuantizedKernel*> found;
    for (const QuantizedKernel* kernel : {AmxInt8Kernel(), VnniKernel(), Avx2Int16Kernel(),
                                          SmmlaKernel(), SdotKernel(), PortableQuantizedKernel()}) {
      if (kernel != nullptr) found.push_back(kernel);
    }
    return found;
  }();
  return list;
}

const QuantizedKernel& ChooseQuantized() {
  return *AllQuantized()[0];
}

}  // namespace loopspec::cpu

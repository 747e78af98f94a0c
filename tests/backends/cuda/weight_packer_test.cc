// Codes in the order of the matrix instruction: taken apart again they are the checkpoint's
// numbers.
#include "backends/cuda/host/weight_packer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>

namespace loopspec::cuda {
namespace {

using Layout = QuantizedTensor::Layout;

float BF16At(const std::byte* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return BF16ToFloat(bits);
}

// A matrix of random codes and scales, and where they are kept.
class Stored {
 public:
  Stored(Layout layout, int64_t rows, int64_t columns, int64_t group, bool biased,
         std::mt19937& random) {
    tensor_.layout = layout;
    tensor_.rows = rows;
    tensor_.columns = columns;
    tensor_.group = group;
    codes_.resize(static_cast<size_t>(rows * columns) / (layout == Layout::kNibbles ? 2 : 1));
    for (std::byte& code : codes_) code = static_cast<std::byte>(random() & 0xFF);
    std::uniform_real_distribution<float> scale(0.001f, 0.02f), bias(-0.1f, 0.1f);
    for (int64_t i = 0; i < rows * (columns / group); ++i) {
      scales_.push_back(scale(random));
      biases_.push_back(bias(random));
    }
    tensor_.codes = codes_.data();
    tensor_.scales = {reinterpret_cast<const std::byte*>(scales_.data()), DType::kF32};
    if (biased) tensor_.biases = {reinterpret_cast<const std::byte*>(biases_.data()), DType::kF32};
  }
  Stored(const Stored&) = delete;
  Stored& operator=(const Stored&) = delete;

  const QuantizedTensor& tensor() const { return tensor_; }
  TensorView View() const {
    TensorView view;
    view.shape = {tensor_.rows, tensor_.columns};
    view.quantized = std::make_shared<const QuantizedTensor>(tensor_);
    return view;
  }

 private:
  std::vector<std::byte> codes_;
  std::vector<float> scales_, biases_;
  QuantizedTensor tensor_;
};

DeviceMatrix MatrixFor(const TileLayout& layout, int64_t columns, WeightForm form) {
  DeviceMatrix matrix;
  matrix.rows = layout.rows();
  matrix.cols = static_cast<int>(columns);
  matrix.ld = PaddedK(matrix.cols);
  matrix.form = form;
  return matrix;
}

// The weight of a tile's output and element k as the kernels see it.
float WeightAt(const DeviceMatrix& matrix, const std::vector<std::byte>& units,
               const std::vector<float>& scales, int row, int k) {
  const std::byte* unit = units.data() + k / kUnitK * UnitBytes(matrix.form);
  if (matrix.form == WeightForm::kInt8) {
    const int code = static_cast<int>(unit[ByteOfInt8(row, k % kUnitK)]) - kInt8Center;
    return scales[static_cast<size_t>(row)] * (static_cast<float>(code) * kCodeStep);
  }
  const NibblePlace at = NibbleOfInt4(row, k % kUnitK);
  const int code = static_cast<int>(unit[at.byte]) >> (at.high ? 4 : 0) & 15;
  const std::byte* scale = unit + ByteOfScale(row, k % kUnitK / kInt4Group);
  const bool biased = matrix.form == WeightForm::kInt4Bias;
  const float bias = biased ? BF16At(scale + kUnitScaleBytes) : 0.0f,
              value = static_cast<float>(code - (biased ? 0 : kInt4Center)) * kCodeStep;
  return std::fma(BF16At(scale), value, bias);
}

struct Case {
  const char* name;
  Layout layout;
  int64_t group;  // 0: all of a row
  bool biased;
  WeightForm form;
};

class WeightPackerTest : public testing::TestWithParam<Case> {};

TEST_P(WeightPackerTest, KeepsEveryWeight) {
  const Case& is = GetParam();
  std::mt19937 random(11);
  constexpr int64_t kColumns = 384, kParts[] = {40, 23};  // rows of two parts; both are padded
  std::vector<std::unique_ptr<Stored>> stored;
  LinearWeights weights;
  for (const int64_t rows : kParts) {
    stored.push_back(std::make_unique<Stored>(
        is.layout, rows, kColumns, is.group == 0 ? kColumns : is.group, is.biased, random));
    weights.parts.push_back(stored.back()->View());
  }
  ASSERT_EQ(FormOf(weights), is.form);
  const TileLayout layout = TileLayout::Plain(63);
  const DeviceMatrix matrix = MatrixFor(layout, kColumns, is.form);
  WeightPacker packer(weights.parts, layout, matrix);
  std::vector<std::byte> units(static_cast<size_t>(UnitBytes(is.form) * matrix.ld / kUnitK));
  std::vector<float> scales(is.form == WeightForm::kInt8 ? kTileRows : 0), row(kColumns);
  for (int tile = 0; tile < matrix.tiles(); ++tile) {
    packer.PackTile(tile, units, scales);
    for (int r = 0; r < kTileRows; ++r) {
      const int64_t source = layout.Source(tile * kTileRows + r);
      std::fill(row.begin(), row.end(), 0.0f);
      if (source >= 0) {
        const bool first = source < kParts[0];
        stored[first ? 0 : 1]->tensor().DequantizeRow(source - (first ? 0 : kParts[0]), row.data());
      }
      for (int k = 0; k < matrix.ld; ++k) {
        const float expected = k < kColumns ? row[static_cast<size_t>(k)] : 0.0f;
        const float found = WeightAt(matrix, units, scales, r, k);
        if (is.form == WeightForm::kInt8) {
          ASSERT_EQ(found, expected) << "tile " << tile << " row " << r << " k " << k;
        } else {
          // Scales and biases are bf16: 2^-8 of each.
          const float most = is.biased ? 0.02f * 15 + 0.1f : 0.02f * 8;
          ASSERT_NEAR(found, expected, most * 0x1.0p-8f)
              << "tile " << tile << " row " << r << " k " << k;
        }
      }
    }
  }
}

// Every code has a place of its own.
TEST(WeightForm, PlacesDoNotOverlap) {
  std::vector<int> bytes(static_cast<size_t>(UnitCodeBytes(WeightForm::kInt8))),
      nibbles(2 * static_cast<size_t>(UnitCodeBytes(WeightForm::kInt4)));
  for (int row = 0; row < kUnitOutputs; ++row) {
    for (int k = 0; k < kUnitK; ++k) {
      ++bytes[static_cast<size_t>(ByteOfInt8(row, k))];
      const NibblePlace at = NibbleOfInt4(row, k);
      ++nibbles[static_cast<size_t>(2 * at.byte + (at.high ? 1 : 0))];
    }
  }
  EXPECT_EQ(bytes, std::vector<int>(bytes.size(), 1));
  EXPECT_EQ(nibbles, std::vector<int>(nibbles.size(), 1));
}

// Codes for which there are no kernels become bf16.
TEST(WeightForm, OfOtherCodesIsBF16) {
  std::mt19937 random(3);
  const Stored grouped(Layout::kSigned8, 16, 64, 32, false, random),
      small(Layout::kNibbles, 16, 64, 16, false, random);
  for (const Stored* stored : {&grouped, &small}) {
    LinearWeights weights;
    weights.parts = {stored->View()};
    EXPECT_EQ(FormOf(weights), WeightForm::kBF16);
  }
  EXPECT_EQ(FormOf(LinearWeights()), WeightForm::kBF16);
}

INSTANTIATE_TEST_SUITE_P(
    Forms, WeightPackerTest,
    testing::Values(Case{"int8", Layout::kSigned8, 0, false, WeightForm::kInt8},
                    Case{"int8_of_bytes", Layout::kBytes, 0, false, WeightForm::kInt8},
                    Case{"int4_of_32", Layout::kNibbles, 32, false, WeightForm::kInt4},
                    Case{"int4_of_128", Layout::kNibbles, 128, false, WeightForm::kInt4},
                    Case{"int4_with_bias", Layout::kNibbles, 64, true, WeightForm::kInt4Bias}),
    [](const auto& is) { return std::string(is.param.name); });

}  // namespace
}  // namespace loopspec::cuda

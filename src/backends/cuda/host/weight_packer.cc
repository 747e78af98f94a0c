#include "backends/cuda/host/weight_packer.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

namespace loopspec::cuda {
namespace {

// Where the codes of a unit go, worked out once.
struct Int8Places {
  std::array<std::array<int16_t, kUnitK>, kUnitOutputs> byte{};
  constexpr Int8Places() {
    for (int row = 0; row < kUnitOutputs; ++row) {
      for (int k = 0; k < kUnitK; ++k)
        byte[static_cast<size_t>(row)][static_cast<size_t>(k)] =
            static_cast<int16_t>(ByteOfInt8(row, k));
    }
  }
};
struct Int4Places {
  std::array<std::array<int16_t, kUnitK>, kUnitOutputs> byte{};
  std::array<std::array<uint8_t, kUnitK>, kUnitOutputs> shift{};
  constexpr Int4Places() {
    for (int row = 0; row < kUnitOutputs; ++row) {
      for (int k = 0; k < kUnitK; ++k) {
        const NibblePlace at = NibbleOfInt4(row, k);
        byte[static_cast<size_t>(row)][static_cast<size_t>(k)] = static_cast<int16_t>(at.byte);
        shift[static_cast<size_t>(row)][static_cast<size_t>(k)] = at.high ? 4 : 0;
      }
    }
  }
};
constexpr Int8Places kInt8Places;
constexpr Int4Places kInt4Places;

void StoreBF16(std::byte* to, float value) {
  const uint16_t bits = FloatToBF16(value);
  std::memcpy(to, &bits, sizeof(bits));
}

static_assert(kInt4Group == QuantizedTensor::kGpuInt4Group);

}  // namespace

WeightForm FormOf(const LinearWeights& weights) {
  if (weights.IsInt8OfOutputs()) return WeightForm::kInt8;
  if (!weights.IsInt4OfGroups()) return WeightForm::kBF16;
  const bool biased =
      std::any_of(weights.parts.begin(), weights.parts.end(), [](const TensorView& part) {
        return part.quantized->has_bias() || part.quantized->center() != kInt4Center;
      });
  return biased ? WeightForm::kInt4Bias : WeightForm::kInt4;
}

WeightPacker::WeightPacker(const std::vector<TensorView>& parts, const TileLayout& layout,
                           const DeviceMatrix& to)
    : parts_(parts), layout_(layout), to_(to) {
  size_t groups = 1;
  for (const TensorView& part : parts)
    groups = std::max(groups, static_cast<size_t>(part.quantized->groups()));
  codes_.resize(static_cast<size_t>(to.cols));
  scales_.resize(groups);
  biases_.resize(groups);
}

void WeightPacker::PackTile(int tile, std::span<std::byte> units, std::span<float> scales) {
  const auto unit_bytes = static_cast<size_t>(UnitBytes(to_.form));
  LOOPSPEC_CHECK(units.size() == unit_bytes * static_cast<size_t>(to_.ld / kUnitK));
  // Rows and elements that pad are zeros: by their codes, or by their scales and biases.
  const int pad = to_.form == WeightForm::kInt8 ? kInt8Center : 0;
  std::fill(units.begin(), units.end(), static_cast<std::byte>(pad));
  std::fill(scales.begin(), scales.end(), 0.0f);
  for (int row = 0; row < kUnitOutputs; ++row) {
    int64_t source = layout_.Source(tile * kTileRows + row);
    if (source < 0) continue;
    size_t part = 0;
    while (source >= parts_[part].shape[0]) source -= parts_[part++].shape[0];
    const QuantizedTensor& from = *parts_[part].quantized;
    std::fill(biases_.begin(), biases_.end(), 0.0f);
    from.DecodeRow(source, codes_.data(), scales_.data(), biases_.data());
    const auto r = static_cast<size_t>(row);
    if (to_.form == WeightForm::kInt8) {
      scales[r] = scales_[0] / kCodeStep;
      LOOPSPEC_CHECK(from.center() == kInt8Center);
      for (size_t k = 0; k < codes_.size(); ++k) {
        std::byte* unit = units.data() + k / kUnitK * unit_bytes;
        unit[kInt8Places.byte[r][k % kUnitK]] = static_cast<std::byte>(codes_[k]);
      }
      continue;
    }
    for (size_t k = 0; k < codes_.size(); ++k) {
      std::byte* unit = units.data() + k / kUnitK * unit_bytes;
      unit[kInt4Places.byte[r][k % kUnitK]] |=
          static_cast<std::byte>(codes_[k] << kInt4Places.shift[r][k % kUnitK]);
    }
    for (size_t k = 0; k < codes_.size(); k += kInt4Group) {
      std::byte* unit = units.data() + k / kUnitK * unit_bytes;
      const int at = ByteOfScale(row, static_cast<int>(k % kUnitK) / kInt4Group);
      const size_t group = k / static_cast<size_t>(from.group);
      StoreBF16(unit + at, scales_[group] / kCodeStep);
      // w = scale (code - center) + bias is scale code + (bias - scale center). Without a bias the
      // scale's own rounding keeps the second term exact.
      if (to_.form == WeightForm::kInt4Bias) {
        const float scale = BF16ToFloat(FloatToBF16(scales_[group]));
        StoreBF16(unit + at + kUnitScaleBytes,
                  biases_[group] - scale * static_cast<float>(from.center()));
      }
    }
  }
}

}  // namespace loopspec::cuda

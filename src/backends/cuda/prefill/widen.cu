#include "backends/cuda/prefill/widen.h"

#include <algorithm>

#include "backends/cuda/device/packed_weights.cuh"
#include "backends/cuda/prefill/follow.cuh"
#include "base/check.h"

namespace loopspec::cuda {
namespace {

constexpr int kWarpsOfWiden = 8;
constexpr int kFewestRows = 128;  // that are widened at once, of matrices that have as many
static_assert(kFewestRows % kTileRows == 0);
constexpr int kMostUnitBytes = UnitBytes(WeightForm::kInt8);
static_assert(kMostUnitBytes >= UnitBytes(WeightForm::kInt4Bias));

// int8 codes times the scale of their output, rounded once.
__device__ __forceinline__ uint32_t Scaled(uint32_t pair, float scale) {
  return PackBF16(__uint_as_float(pair << 16) * scale, __uint_as_float(pair & 0xFFFF0000u) * scale);
}

// A warp for each unit: into shared memory, through registers as in decoding, and out by rows.
template <WeightForm kForm>
__global__ void __launch_bounds__(32 * kWarpsOfWiden)
    WidenKernel(const DeviceMatrix from, int first_tile, int units, bf16* to) {
  __shared__ uint4 packed[kWarpsOfWiden][kMostUnitBytes / 16];
  __shared__ uint4 wide[kWarpsOfWiden][kUnitOutputs][kUnitK / 8 + 1];  // no two rows in one bank
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int unit = static_cast<int>(blockIdx.x) * kWarpsOfWiden + warp;
  if (unit >= units) return;
  const int of_tile = from.ld / kUnitK, tile = unit / of_tile, k = unit % of_tile;
  const int bytes = UnitBytes(from.form);
  const auto* source = reinterpret_cast<const uint4*>(
      from.units + (static_cast<size_t>(first_tile + tile) * of_tile + k) * bytes);
  for (int i = lane; i < bytes / 16; i += 32) packed[warp][i] = __ldcs(source + i);
  FollowKernelBefore();  // which may be a product that reads what is overwritten
  __syncwarp();
  const int g = lane / 4, t = lane % 4;
  float scales[2] = {1.0f, 1.0f};
  if constexpr (kForm == WeightForm::kInt8) {
    scales[0] = __ldg(from.scales + (first_tile + tile) * kTileRows + g);
    scales[1] = __ldg(from.scales + (first_tile + tile) * kTileRows + g + 8);
  }
  PackedWeights<kForm> codes;
#pragma unroll
  for (int step = 0; step < kUnitSteps; ++step) {
    if (step % codes.kSteps == 0)
      codes.Load(SharedAddress(packed[warp]), step / codes.kSteps,
                 from.form == WeightForm::kInt4Bias);
    uint32_t a[4];
    codes.Expand(step % codes.kSteps, a);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (kForm == WeightForm::kInt8) a[j] = Scaled(a[j], scales[j % 2]);
      reinterpret_cast<uint32_t*>(wide[warp][g + j % 2 * 8])[step * 8 + j / 2 * 4 + t] = a[j];
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kUnitOutputs * kUnitK / 8 / 32; ++i) {
    const int row = i * 4 + lane / 8, part = lane % 8;
    bf16* out = to + (static_cast<size_t>(tile) * kTileRows + row) * from.ld + k * kUnitK;
    reinterpret_cast<uint4*>(out)[part] = wide[warp][row][part];
  }
}

}  // namespace

void WidenRows(const DeviceMatrix& from, int first, int rows, bf16* to, cudaStream_t stream) {
  LOOPSPEC_CHECK(from.packed() && first % kTileRows == 0 && rows % kTileRows == 0);
  const int units = rows / kTileRows * (from.ld / kUnitK);
  const auto ctas = static_cast<unsigned>((units + kWarpsOfWiden - 1) / kWarpsOfWiden);
  Follow(from.form == WeightForm::kInt8 ? WidenKernel<WeightForm::kInt8>
                                        : WidenKernel<WeightForm::kInt4>,
         dim3(ctas), 32 * kWarpsOfWiden, stream, from, first / kTileRows, units, to);
}

size_t WidenedWeights::RoomFor(const DeviceModel& model) {
  size_t most = 0;
  const auto make_room = [&](const DeviceMatrix& m) {
    if (m.packed()) most = std::max(most, static_cast<size_t>(m.rows) * static_cast<size_t>(m.ld));
  };
  for (const auto* stack : {&model.prelude, &model.core, &model.coda}) {
    for (const DeviceLayer& layer : *stack) {
      for (const DeviceMatrix* m : {&layer.qkv, &layer.attn_out, &layer.gate_up, &layer.down})
        make_room(*m);
    }
  }
  make_room(model.adapter);
  make_room(model.update);
  if (most == 0 && model.head.packed())
    most = static_cast<size_t>(kFewestRows) * static_cast<size_t>(model.head.ld);
  return most * sizeof(bf16);
}

WidenedWeights::WidenedWeights(const DeviceModel& model, cudaStream_t stream) : stream_(stream) {
  const size_t room = RoomFor(model);
  if (room > 0) room_ = DeviceArray<bf16>(room / sizeof(bf16), "weights of few bits as bf16");
}

int WidenedWeights::RowsAtOnce(const DeviceMatrix& matrix) const {
  const auto rows = static_cast<int>(std::min<size_t>(room_.size() / static_cast<size_t>(matrix.ld),
                                                      static_cast<size_t>(matrix.rows)));
  return rows == matrix.rows ? rows : rows / kFewestRows * kFewestRows;
}

DeviceMatrix WidenedWeights::Widen(const DeviceMatrix& matrix, int first, int rows) {
  WidenRows(matrix, first, rows, room_.data(), stream_);
  DeviceMatrix widened;
  widened.data = room_.data();
  widened.rows = rows;
  widened.cols = matrix.cols;
  widened.ld = matrix.ld;
  return widened;
}

}  // namespace loopspec::cuda

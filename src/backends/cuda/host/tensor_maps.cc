#include "backends/cuda/host/tensor_maps.h"

#include <cuda.h>

#include <cstring>

#include "backends/cuda/host/architecture.h"
#include "backends/cuda/host/transfers.h"
#include "backends/cuda/program/wide_work.h"
#include "base/error.h"

namespace loopspec::cuda {
namespace {

static_assert(sizeof(CUtensorMap) == sizeof(TensorMap));
using EncodeFunction = decltype(&cuTensorMapEncodeTiled);

// The driver is not linked: it need not be there where the backend is only compiled.
EncodeFunction FindEncode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  Check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                         cudaEnableDefault, &found),
        "looking for the driver's tensor maps");
  if (found != cudaDriverEntryPointSuccess)
    Fail("the NVIDIA driver is too old: it has no tensor maps (CUDA 12.0)");
  return reinterpret_cast<EncodeFunction>(function);
}

TensorMap AsBytes(const CUtensorMap& map) {
  TensorMap out;
  std::memcpy(&out, &map, sizeof(map));
  return out;
}

// One copy fills a stage of the ring: a tile's rows by kBlockK elements, as groups of 64 elements
// (128 bytes, the span of the swizzle) one after the other.
TensorMap Encode(EncodeFunction encode, const DeviceMatrix& m) {
  if (m.packed()) return MakeUnitMap(m, 1, kBlockK / kUnitK);
  CUtensorMap map{};
  constexpr cuuint32_t kGroup = 64;
  const cuuint64_t extents[3] = {kGroup, static_cast<cuuint64_t>(m.rows),
                                 static_cast<cuuint64_t>(m.ld) / kGroup};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(m.ld) * sizeof(bf16),
                                 kGroup * sizeof(bf16)};
  const cuuint32_t box[3] = {kGroup, kTileRows, kBlockK / kGroup}, steps[3] = {1, 1, 1};
  const CUresult status =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<bf16*>(m.data), extents, strides,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    Fail("the driver refused a tensor map of {} x {} with error {}", m.rows, m.ld,
         static_cast<int>(status));
  return AsBytes(map);
}

}  // namespace

DeviceArray<TensorMap> MakeTensorMaps(const std::vector<DeviceMatrix>& matrices, int device) {
  if (KernelArchitecture(device) < 90) return {};
  const EncodeFunction encode = FindEncode();
  std::vector<TensorMap> maps;
  for (const DeviceMatrix& m : matrices) maps.push_back(Encode(encode, m));
  return Upload(maps, "tensor maps");
}

DeviceArray<TensorMap> MakeWideMaps(const std::vector<DeviceMatrix>& matrices) {
  static_assert(kWideStageK == kUnitK);
  std::vector<TensorMap> maps;
  for (const DeviceMatrix& m : matrices) {
    for (const int box : kWideBoxes) {
      maps.push_back(m.packed() ? MakeUnitMap(m, box / kTileRows, 1)
                                : MakeBoxMap(m.data, m.ld, m.rows, m.ld, kWideStageK, box));
    }
  }
  return Upload(maps, "tensor maps");
}

TensorMap MakeUnitMap(const DeviceMatrix& m, int tiles, int units) {
  CUtensorMap map{};
  const auto bytes = static_cast<cuuint64_t>(UnitBytes(m.form));
  const auto words = static_cast<cuuint32_t>(bytes / sizeof(uint32_t));
  const cuuint64_t of_tile = static_cast<cuuint64_t>(m.ld) / kUnitK;
  const cuuint64_t extents[3] = {words, of_tile, static_cast<cuuint64_t>(m.tiles())};
  const cuuint64_t strides[2] = {bytes, bytes * of_tile};
  const cuuint32_t box[3] = {words, static_cast<cuuint32_t>(units), static_cast<cuuint32_t>(tiles)},
                   steps[3] = {1, 1, 1};
  const CUresult status = FindEncode()(
      &map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 3, const_cast<std::byte*>(m.units), extents, strides,
      box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    Fail("the driver refused a tensor map of {} x {} in few bits with error {}", m.rows, m.ld,
         static_cast<int>(status));
  return AsBytes(map);
}

TensorMap MakeBoxMap(const bf16* data, int64_t columns, int64_t rows, int64_t ld, int box_columns,
                     int box_rows) {
  static const EncodeFunction encode = FindEncode();
  CUtensorMap map{};
  const cuuint64_t extents[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(ld) * sizeof(bf16)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(box_columns),
                             static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  const CUresult status =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<bf16*>(data), extents, strides,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    Fail("the driver refused a tensor map of {} x {} with error {}", rows, columns,
         static_cast<int>(status));
  return AsBytes(map);
}

}  // namespace loopspec::cuda

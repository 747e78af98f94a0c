#include "backends/cuda/tensor_maps.h"

#include <cuda.h>

#include <cstring>
#include <limits>

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

// `box_rows` rows by `box_elements` elements at once, as groups of 64 elements (128 bytes, all that
// the engine's exchange of 16-byte parts spans) one after the other.
TensorMap Encode(EncodeFunction encode, const bf16* data, int64_t rows, int64_t ld, int box_rows,
                 int box_elements) {
  CUtensorMap map{};
  constexpr cuuint32_t kGroup = 64;
  const cuuint64_t extents[3] = {kGroup, static_cast<cuuint64_t>(rows),
                                 static_cast<cuuint64_t>(ld) / kGroup};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(ld) * sizeof(bf16), kGroup * sizeof(bf16)};
  const cuuint32_t box[3] = {kGroup, static_cast<cuuint32_t>(box_rows),
                             static_cast<cuuint32_t>(box_elements) / kGroup};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult status =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<bf16*>(data), extents, strides,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    Fail("the driver refused a tensor map of {} x {} with error {}", rows, ld,
         static_cast<int>(status));
  TensorMap bytes;
  std::memcpy(&bytes, &map, sizeof(map));
  return bytes;
}

bool HasEngine(int device) {
  int major = 0;
  Check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
        "reading the device");
  return major >= 9;
}

DeviceArray<TensorMap> ToDevice(const std::vector<TensorMap>& maps) {
  DeviceArray<TensorMap> on_device(maps.size(), "tensor maps");
  Check(cudaMemcpy(on_device.data(), maps.data(), on_device.bytes(), cudaMemcpyHostToDevice),
        "copying tensor maps");
  return on_device;
}

}  // namespace

DeviceArray<TensorMap> MakeTensorMaps(const std::vector<DeviceMatrix>& matrices, int device) {
  if (!HasEngine(device)) return {};
  const EncodeFunction encode = FindEncode();
  std::vector<TensorMap> maps;
  for (const DeviceMatrix& m : matrices)
    maps.push_back(Encode(encode, m.data, m.rows, m.ld, kTileRows, kBlockK));
  return ToDevice(maps);
}

DeviceArray<TensorMap> MakePageMap(const bf16* pages, int64_t vectors, int head_stride, int split,
                                   int device) {
  if (!HasEngine(device) || head_stride % 64 != 0 || split * head_stride > kTileRows * kBlockK ||
      vectors > std::numeric_limits<int32_t>::max()) {
    return {};
  }
  return ToDevice({Encode(FindEncode(), pages, vectors, head_stride, split, head_stride)});
}

}  // namespace loopspec::cuda

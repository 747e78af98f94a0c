#include "backends/cuda/host/read_bandwidth.h"

#include <algorithm>

#include "backends/cuda/host/cuda_memory.h"

namespace loopspec::cuda {
namespace {

// Memory moves constant data faster than what a model holds.
__global__ void FillWithNoise(uint4* data, size_t count) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + 1;
    const auto next = [&x] {
      x ^= x << 13;
      x ^= x >> 17;
      x ^= x << 5;
      return x;
    };
    data[i] = make_uint4(next(), next(), next(), next());
  }
}

__global__ void Read(const uint4* data, size_t count, uint32_t* out) {
  uint32_t x = 0;
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < count; i += 4 * stride) {
    const uint4 a = __ldcs(data + i), b = __ldcs(data + i + stride);
    const uint4 c = __ldcs(data + i + 2 * stride), d = __ldcs(data + i + 3 * stride);
    x ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^
         d.w;
  }
  if (x == 0x12345678u) *out = x;
}

}  // namespace

double MeasureReadBandwidth() {
  // Far larger than the caches; less of it where key/value memory has taken nearly everything.
  const size_t bytes = std::min(size_t{4} << 30, FreeMemory() / 2 / 4096 * 4096);
  DeviceArray<uint4> data(bytes / sizeof(uint4), "the bandwidth test");
  DeviceArray<uint32_t> out(1, "the bandwidth test");
  const Stream stream;
  FillWithNoise<<<1024, 256, 0, stream.get()>>>(data.data(), data.size());
  Check(cudaGetLastError(), "the bandwidth test");
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin), "the bandwidth test");
  Check(cudaEventCreate(&end), "the bandwidth test");
  double best = 0;
  for (int i = 0; i < 20; ++i) {
    Check(cudaEventRecord(begin, stream.get()), "the bandwidth test");
    Read<<<132 * 16, 512, 0, stream.get()>>>(data.data(), data.size(), out.data());
    Check(cudaEventRecord(end, stream.get()), "the bandwidth test");
    Check(cudaEventSynchronize(end), "the bandwidth test");
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    best = std::max(best, static_cast<double>(bytes) / (static_cast<double>(ms) * 1e-3));
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return best;
}

}  // namespace loopspec::cuda

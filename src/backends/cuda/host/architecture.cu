#include "backends/cuda/host/architecture.h"

#include <algorithm>

#include "backends/cuda/host/cuda_memory.h"

namespace loopspec::cuda {
namespace {

__global__ void AnyKernel() {}

int Capability(int device) {
  int major = 0, minor = 0;
  Check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
        "reading the device");
  Check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
        "reading the device");
  return 10 * major + minor;
}

}  // namespace

int KernelArchitecture(int device) {
  int current = 0;
  Check(cudaGetDevice(&current), "reading the device");
  Check(cudaSetDevice(device), "selecting the GPU");
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, AnyKernel);
  Check(cudaSetDevice(current), "selecting the GPU");
  Check(status, "looking for the kernels");
  return std::min(attributes.ptxVersion, Capability(device));
}

bool UsesHopperKernels(int device) {
  return KernelArchitecture(device) == 90 && Capability(device) == 90;
}

}  // namespace loopspec::cuda

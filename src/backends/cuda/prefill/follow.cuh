// Kernels of a prompt follow each other closely, where the device can do that: each starts while
// the one before ends, and waits for it.
#pragma once

#include "backends/cuda/host/architecture.h"
#include "backends/cuda/host/cuda_memory.h"

namespace loopspec::cuda {

// Where kernels can follow each other closely (Hopper and later), each waits for the one before.
__device__ __forceinline__ void FollowKernelBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Whether the current device has what FollowKernelBefore needs, and the kernels were compiled with
// it.
inline bool KernelsMayOverlap() {
  int device = 0, major = 0;
  Check(cudaGetDevice(&device), "reading the device");
  Check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
        "reading the device");
  static const bool compiled = KernelArchitecture(device) >= 90;  // asked once: launches are many
  return major >= 9 && compiled;
}

// Launches so that the kernel may start while the one before ends.
template <typename... Parameters, typename... Arguments>
void Follow(void (*kernel)(Parameters...), dim3 grid, int threads, cudaStream_t stream,
            const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = KernelsMayOverlap() ? 1 : 0;
  Check(cudaLaunchKernelEx(&config, kernel, arguments...), "launching a prompt's kernels");
}

}  // namespace loopspec::cuda

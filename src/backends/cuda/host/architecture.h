// What the kernels of this build may use.
#pragma once

namespace loopspec::cuda {

// The architecture that the kernels which run on `device` were compiled for, such as 90: at most
// the device's own. It is less where a build leaves out what the device could do
// (LOOPSPEC_CUDA_PORTABLE); TMA, wgmma and launches that overlap are then not used.
int KernelArchitecture(int device);

// Whether kernels compiled for 9.0 alone (loopspec_cuda_hopper) are used on `device`.
bool UsesHopperKernels(int device);

}  // namespace loopspec::cuda

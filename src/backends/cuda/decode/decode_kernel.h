// Launching the decode kernel and the commit of finished cells.
#pragma once

#include "backends/cuda/program/step_types.h"

namespace loopspec::cuda {

// How a kernel runs on a device: one block per multiprocessor, alone on it.
struct DecodeKernelLaunch {
  const void* kernel = nullptr;
  int threads = 0;
  size_t shared_bytes = 0;
  int copier_rows = 0;  // that a set may have, where a warp copies
};
struct DecodeLaunch {
  int blocks = 0;
  DecodeKernelLaunch any;             // takes any set
  DecodeKernelLaunch with_copier[2];  // with a warp that copies, for fewer rows and for more; no
                                      // rows: there is none
  int copy_interval[2] = {1, 1};      // of that warp (DecodeParams)
};

// Throws Error when the device has too little shared memory.
DecodeLaunch PrepareDecode(int device);

// `rows`: of each set.
void LaunchDecode(const DecodeLaunch& launch, DecodeParams params, const int (&rows)[kSets],
                  cudaStream_t stream);
// Copies the plan's committed cells into their pages.
void LaunchCommits(const DecodeParams& params, int commits, cudaStream_t stream);

}  // namespace loopspec::cuda

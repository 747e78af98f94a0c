// Launching the decode kernel and the commit of finished cells.
#pragma once

#include "backends/cuda/step_types.h"

namespace loopspec::cuda {

// How the kernel runs on a device: one block per multiprocessor, as much shared memory as there is.
struct DecodeLaunch {
  int blocks = 0;
  const void* kernel = nullptr;
  size_t shared_bytes = 0;
};

// Throws Error when the device has too little shared memory.
DecodeLaunch PrepareDecode(int device);

void LaunchDecode(const DecodeLaunch& launch, const DecodeParams& params, cudaStream_t stream);
// Copies the plan's committed cells into their pages.
void LaunchCommits(const DecodeParams& params, int commits, cudaStream_t stream);

}  // namespace loopspec::cuda

// Launching the decode kernel and the commit of finished cells.
#pragma once

#include "backends/cuda/decode/wide/wide_kernels.h"
#include "backends/cuda/device/kernel_params.h"

namespace loopspec::cuda {

// How a kernel runs on a device: one CTA per multiprocessor.
struct DecodeKernelLaunch {
  const void* kernel = nullptr;
  int threads = 0;
  size_t shared_bytes = 0;
  int producer_rows = 0;  // most rows of a phase, with a producer warp
};
struct DecodeLaunch {
  int ctas = 0;
  DecodeKernelLaunch any;     // for any number of rows
  int wide_from = kWideFrom;  // rows of a phase from which on WideKernels are used if available
  // With a producer warp, for up to 24 and up to 32 rows; producer_rows 0: not on this device.
  DecodeKernelLaunch with_producer[2];
  int producer_interval[2] = {1, 1};  // of that warp (DecodeParams)
};

// `packed`: some weights have few bits. Throws Error when the device has too little shared memory.
DecodeLaunch PrepareDecode(int device, bool int8_keys, bool packed);

// Rows up to which a phase runs in a kernel with a producer warp; 0: none does.
int ProducerRows(const DecodeLaunch& launch, const DecodeParams& params);

// Runs the step of `plan`, the host's copy of what lies at params.plan. One launch, or several
// where phases need different kernels.
void LaunchDecode(const DecodeLaunch& launch, const WideKernels& wide, DecodeParams params,
                  const PlanHeader& plan, cudaStream_t stream);
// Copies the plan's committed cells into their pages.
void LaunchCommits(const DecodeParams& params, int commits, cudaStream_t stream);

// The parts of these for weights of few bits, and for int8 keys and values.
bool PreparePackedKernels(bool int8_keys, int limit, DecodeLaunch& launch);
bool PreparePackedInt8Kernels(int limit, DecodeLaunch& launch);
bool PrepareInt8Kernels(int limit, DecodeLaunch& launch);
void LaunchInt8Commits(const DecodeParams& params, int commits, cudaStream_t stream);

}  // namespace loopspec::cuda

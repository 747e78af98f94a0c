// Instances of the decode kernel for models of which some weights have few bits, with bf16 keys and
// values.
#include "backends/cuda/decode/decode_loop.cuh"

namespace loopspec::cuda {

bool PreparePackedKernels(bool int8_keys, int limit, DecodeLaunch& launch) {
  return int8_keys ? PreparePackedInt8Kernels(limit, launch)
                   : PrepareKernels<false, true>(limit, launch);
}

}  // namespace loopspec::cuda

// Instances of the decode kernel for models of which some weights have few bits, with int8 keys and
// values.
#include "backends/cuda/decode/decode_loop.cuh"

namespace loopspec::cuda {

bool PreparePackedInt8Kernels(int limit, DecodeLaunch& launch) {
  return PrepareKernels<true, true>(limit, launch);
}

}  // namespace loopspec::cuda

// That products of many rows may be computed by wgmma, where a single row's are by mma.sync.
#include <gtest/gtest.h>

#include "backends/cuda/host/cuda_memory.h"
#include "tests/backends/cuda/cuda_driver.h"
#include "tests/backends/cuda/instruction_check.h"

namespace loopspec {
namespace {

bool HopperIsThere() {
  int major = 0, minor = 0;
  return GpuIsThere() &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) == cudaSuccess &&
         major == 9 && minor == 0;
}

TEST(HopperInstruction, HasTheBitsOfTheWarpsInstruction) {
  if (!HopperIsThere()) GTEST_SKIP() << "no GPU of compute capability 9.0 here";
  cuda::Check(cudaSetDevice(0), "selecting the GPU");
  for (int kind = 0; kind < cuda::kOperandKinds; ++kind) {
    for (const int rows : {32, 64, 88, 128}) {
      for (const bool begin : {false, true}) {
        const cuda::InstructionCheck check =
            cuda::CompareInstructions(static_cast<cuda::Operands>(kind), rows, begin,
                                      static_cast<uint32_t>(kind * 10 + rows));
        EXPECT_GT(check.sums, 0u);
        EXPECT_EQ(check.differing, 0u) << "of " << check.sums << " sums of " << rows
                                       << " rows, operands of kind " << kind << ", begin " << begin;
      }
    }
  }
}

}  // namespace
}  // namespace loopspec

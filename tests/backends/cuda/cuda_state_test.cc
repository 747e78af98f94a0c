// IFM's hashed initial state on the GPU: the CPU's bits, and within 4e-6 of what the released code
// makes of it with a correctly rounded sine.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "cuda_driver.h"
#include "state_check.h"
#include "tensor/safetensors.h"

namespace loopspec {
namespace {

cuda::StateParams Hashed(int hidden) {
  ModelSpec spec;
  spec.hidden = hidden;
  spec.start = StateStart::kHashed;
  return cuda::StartOf(spec, 0);
}

TEST(CudaState, HasTheBitsOfTheCpu) {
  LOOPSPEC_NEEDS_GPU();
  int64_t differing = 0, compared = 0;
  for (const int hidden : {48, 1536, 3072, 6144}) {
    const cuda::StateParams start = Hashed(hidden);
    for (const int first : {0, 1000, 8100, 123456}) {
      constexpr int kPositions = 160;
      const std::vector<float> states = cuda::StartStates(start, first, kPositions, hidden);
      for (int p = 0; p < kPositions; ++p) {
        for (int i = 0; i < hidden; ++i) {
          const float cpu = HashedState(static_cast<uint32_t>(first + p), static_cast<uint32_t>(i),
                                        start.hash_scale);
          const float gpu =
              states[static_cast<size_t>(p) * static_cast<size_t>(hidden) + static_cast<size_t>(i)];
          differing += std::bit_cast<uint32_t>(cpu) != std::bit_cast<uint32_t>(gpu) ? 1 : 0;
          ++compared;
        }
      }
    }
  }
  EXPECT_EQ(differing, 0) << "of " << compared;
  std::printf("    hashed states: %lld of %lld elements differ\n",
              static_cast<long long>(differing), static_cast<long long>(compared));
}

TEST(CudaState, IsAsReleased) {
  LOOPSPEC_NEEDS_GPU();
  for (const char* name : {"ifm-p1-huginn-tiny", "ifm-p2-huginn-tiny", "ifm-p2-linear-tiny"}) {
    const auto folder = GoldenFolder(name);
    if (folder.empty()) GTEST_SKIP() << "the golden files are not here";
    const Checkpoint file = Checkpoint::OpenFile(folder / "state.safetensors");
    const TensorView& state = file.tensors().at("state");
    const auto positions = static_cast<int>(state.shape[0]),
               hidden = static_cast<int>(state.shape[1]);
    const std::vector<float> gpu = cuda::StartStates(Hashed(hidden), 0, positions, hidden);
    double worst = 0;
    for (int64_t i = 0; i < state.elements(); ++i) {
      const float released = LoadElement(state.data, state.dtype, i);
      worst =
          std::max(worst, static_cast<double>(std::fabs(gpu[static_cast<size_t>(i)] - released)));
    }
    EXPECT_LT(worst, 4e-6) << name;
    std::printf("    %s: the state differs by at most %.1e\n", name, worst);
  }
}

}  // namespace
}  // namespace loopspec

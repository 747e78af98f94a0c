#include "backends/cuda/host/cuda_memory.h"

#include "base/error.h"

namespace loopspec::cuda {
namespace {

double Gigabytes(size_t bytes) {
  return static_cast<double>(bytes) * 1e-9;
}

}  // namespace

void FailStatus(cudaError_t status, std::string_view doing) {
  Fail("CUDA: {} failed: {} ({})", doing, cudaGetErrorString(status), cudaGetErrorName(status));
}

void FailMemory(size_t bytes, std::string_view what) {
  Fail("the GPU has {:.2f} GB free, {} needs {:.2f} GB", Gigabytes(FreeMemory()), what,
       Gigabytes(bytes));
}

void FailText(const std::string& text) {
  throw Error(text);
}

size_t FreeMemory() {
  size_t free = 0, total = 0;
  Check(cudaMemGetInfo(&free, &total), "asking for the free memory");
  return free;
}

}  // namespace loopspec::cuda

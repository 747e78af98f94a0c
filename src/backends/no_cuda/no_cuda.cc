#include "backends/backend.h"
#include "base/error.h"

namespace loopspec {

std::unique_ptr<Backend> MakeCudaBackend(const Model&, const BackendOptions&, int) {
  Fail("this build has no CUDA backend; configure with LOOPSPEC_CUDA=ON where nvcc is installed");
}

int CudaDeviceCount(std::string* why) {
  if (why != nullptr) *why = "this build has no CUDA backend";
  return 0;
}

std::string CudaDeviceName(int) {
  return "none";
}

}  // namespace loopspec

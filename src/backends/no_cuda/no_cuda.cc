// Stands in for the CUDA backend where the build has none.
#include "backends/backend.h"
#include "base/error.h"

namespace loopspec {
namespace {

constexpr const char* kWhy = "this build of loopspec has no CUDA backend (it is built where nvcc is found)";

}  // namespace

int CudaDeviceCount(std::string* why) {
  if (why != nullptr) *why = kWhy;
  return 0;
}

std::unique_ptr<Backend> MakeCudaBackend(const Model&, const BackendOptions&, int) { Fail("{}", kWhy); }

}  // namespace loopspec

// Stands in for the CPU backend where Highway is not installed.
#include "backends/backend.h"
#include "base/error.h"

namespace loopspec {

std::unique_ptr<Backend> MakeCpuBackend(const Model&, const BackendOptions&) {
  Fail("this build has no CPU backend: Highway was not found");
}

}  // namespace loopspec

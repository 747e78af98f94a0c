// In place of pull.cc and what it needs, where libcurl or OpenSSL was not there to build with.
#include "base/error.h"
#include "hub/pull.h"

namespace loopspec::hub {

bool CanPull() {
  return false;
}

PullResult Pull(const PullOptions& options) {
  Fail(
      "this loopspec was built without libcurl and OpenSSL: install libcurl4-openssl-dev and "
      "libssl-dev and build it again, or download with: hf download {}",
      options.name.repository);
}

int VerifyFiles(const std::filesystem::path& folder) {
  Fail("{} cannot be verified: this loopspec was built without OpenSSL, expected libssl-dev",
       folder.string());
}

}  // namespace loopspec::hub

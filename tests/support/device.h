// The device that a test of any device runs on. ctest runs such a test twice: on the CPU, and under
// a name that ends in _gpu on the GPU, with LOOPSPEC_TEST_DEVICE=cuda (cmake/LoopspecFolder.cmake).
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "backends/backend.h"

namespace loopspec::test {

inline std::string TestDevice() {
  const char* value = std::getenv("LOOPSPEC_TEST_DEVICE");
  return value == nullptr ? "cpu" : value;
}
inline bool OnCpu() {
  return TestDevice() == "cpu";
}

// No test begins where the device is not there: the program says so and exits as a skipped one.
class DeviceIsThere : public testing::Environment {
 public:
  void SetUp() override {
    std::string why;
    if (OnCpu() || CudaDeviceCount(&why) > 0) return;
    std::printf("no GPU here: %s\n", why.c_str());
    std::fflush(stdout);
    std::_Exit(77);
  }
};
inline const testing::Environment* const kDeviceIsThere =
    testing::AddGlobalTestEnvironment(new DeviceIsThere);

}  // namespace loopspec::test

#include "engine/device.h"

#include <charconv>

#include "base/error.h"

namespace loopspec {
namespace {

// -1 for the CPU.
int ResolveDevice(const std::string& device) {
  if (device == "cpu") return -1;
  std::string why;
  const int count = CudaDeviceCount(&why);
  if (device == "auto") return count > 0 ? 0 : -1;
  if (device != "cuda" && !device.starts_with("cuda:"))
    Fail("device {}: expected auto, cpu, cuda or cuda:N", device);
  int index = 0;
  if (device != "cuda") {
    const char* end = device.data() + device.size();
    const auto [at, error] = std::from_chars(device.data() + 5, end, index);
    if (error != std::errc() || at != end) Fail("device {}: expected cuda:N", device);
  }
  if (count == 0) Fail("device {}: {}", device, why);
  if (index < 0 || index >= count)
    Fail("device {}: this machine has {} GPU(s), numbered from 0", device, count);
  return index;
}

}  // namespace

std::unique_ptr<Backend> MakeBackend(const Model& model, const BackendOptions& options,
                                     const std::string& device) {
  const int gpu = ResolveDevice(device);
  return gpu < 0 ? MakeCpuBackend(model, options) : MakeCudaBackend(model, options, gpu);
}

bool IsCpu(const std::string& device) {
  return ResolveDevice(device) < 0;
}

ComputeMode ParseCompute(const std::string& text) {
  if (text == "auto") return ComputeMode::kAuto;
  if (text == "f32") return ComputeMode::kF32;
  if (text == "bf16") return ComputeMode::kBF16;
  Fail("compute {}: expected auto, f32 or bf16", text);
}

}  // namespace loopspec

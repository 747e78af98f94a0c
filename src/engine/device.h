// Which backend runs a model: by name, or the best there is.
#pragma once

#include <memory>
#include <string>

#include "backends/backend.h"

namespace loopspec {

// "cpu", "cuda", "cuda:1", or "auto": the first GPU, else the CPU. Throws Error when there is no
// such device.
std::unique_ptr<Backend> MakeBackend(const Model& model, const BackendOptions& options,
                                     const std::string& device);

// Whether MakeBackend would take the CPU. Throws Error when there is no such device.
bool IsCpu(const std::string& device);

// "auto", "f32", "bf16"
ComputeMode ParseCompute(const std::string& text);

}  // namespace loopspec

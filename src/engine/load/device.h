// Which backend runs a model: by name, or the best there is.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "backends/backend.h"
#include "decode/depths.h"
#include "loopspec/loopspec.h"

namespace loopspec {

// "cpu", "cuda", "cuda:1", or "auto": the first GPU where it can compute as asked (not in float32,
// which is said in a line on standard error), else the CPU. Throws Error when there is no such
// device.
std::unique_ptr<Backend> MakeBackend(const Model& model, const BackendOptions& options,
                                     const std::string& device);

// The same as an engine's options ask for it, with readouts at R and at `depths`. `drafts`: of a
// branch at most; 0: one at each of them.
std::unique_ptr<Backend> MakeBackend(const Model& model, const EngineOptions& options,
                                     std::span<const int> depths, int drafts = 0);

// Whether MakeBackend would take the CPU. Throws Error when there is no such device.
bool IsCpu(const EngineOptions& options);
// The name of the chip that MakeBackend would take, as Backend::chip says it. Throws Error when
// there is no such device.
std::string ChipOf(const EngineOptions& options);

// What reports say of a precision: "bf16", and where keys and values are kept otherwise (see
// NameOfKvType) "bf16, keys loops:int8*8,last@64". No `kv_type`: nobody knows.
std::string NameOfPrecision(const std::string& compute, const std::string& kv_type);
std::string NameOfPrecision(const BackendOptions& options);

// "auto", "f32", "bf16"
ComputeMode ParseCompute(const std::string& text);
struct KvChoice {
  KvType type = KvType::kCompute;
  std::optional<SpannedKeyPlan> plan = {};
};
// "auto" and "bf16", which are the same where activations are bf16, "int8", "loops:int8*8,last", a
// plan of keys, or "loops": the model's default plan, on a GPU in spans that suit its prompts.
KvChoice ParseKvType(const std::string& text, ComputeMode compute, const ModelSpec& spec,
                     DeviceClass device);

}  // namespace loopspec

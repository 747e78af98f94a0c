#include "engine/load/device.h"

#include <algorithm>
#include <charconv>

#include "base/cpu_name.h"
#include "base/field_error.h"
#include "base/log.h"
#include "base/memory_limit.h"
#include "decode/depths.h"
#include "kv/kept_planes.h"

namespace loopspec {
namespace {

constexpr int kMostTexts = 32;          // of full length, that memory is taken for
constexpr int kSpanOfGpuPrompts = 512;  // with which a GPU's prompts are nearly as fast as without

// The CUDA backend computes in bf16 alone.
bool GpuComputes(ComputeMode compute) {
  return compute != ComputeMode::kF32;
}

// -1 for the CPU.
int ResolveDevice(const std::string& device, ComputeMode compute) {
  if (device == "cpu") return -1;
  std::string why;
  const int count = CudaDeviceCount(&why);
  if (device == "auto") return count > 0 && GpuComputes(compute) ? 0 : -1;
  if (device != "cuda" && !device.starts_with("cuda:"))
    throw FieldError("device", device, "auto, cpu, cuda or cuda:N");
  int index = 0;
  if (device != "cuda") {
    const char* end = device.data() + device.size();
    const auto [at, error] = std::from_chars(device.data() + 5, end, index);
    if (error != std::errc() || at != end) throw FieldError("device", device, "cuda:N");
  }
  if (count == 0) throw FieldError(ErrorKind::kUnavailable, "device", device, "cpu: " + why);
  if (index < 0 || index >= count)
    throw FieldError("device", device, fmt::format("cuda:0 to cuda:{} on this machine", count - 1));
  return index;
}

// A quarter of the memory there is, as positions of this model.
int64_t CpuPositions(const ModelSpec& spec, const BackendOptions& options) {
  const KeptPlanes planes(spec, static_cast<int>(options.readout_depths.size()), options.key_plan);
  const int64_t position = planes.BytesPerPosition(int64_t{spec.kv_size()} * 2 * 4);  // float32
  const int64_t texts = GetMemoryLimit().bytes / 4 / position / spec.max_positions;
  // Less than one text: the backend knows best what it can do.
  return std::min<int64_t>(texts, kMostTexts) * spec.max_positions;
}

// The plan of keys for those who name none, by measurements of the family with so many loops
// (docs/precision.md): the fewest bytes that cost no more than int8 does. Null: there is none,
// since a plan that suits other loops can ruin a model.
std::optional<KeyPlan> DefaultKeyPlan(const ModelSpec& spec) {
  // The loops of these families come to rest: from the eighth on keys change by one hundredth.
  const bool rests = spec.family == "raven" || spec.family == "huginn";
  if (rests && spec.recurrence >= 16) return KeyPlan::Parse("int8*8,last", spec.recurrence);
  if (spec.family == "ouro" && spec.recurrence == 4)
    return KeyPlan::Parse("int8,r5,r4", spec.recurrence);
  return std::nullopt;
}

// What "loops" means. Throws Error where there is no such plan, or none that the device reads.
SpannedKeyPlan DefaultPlanFor(const ModelSpec& spec, DeviceClass device) {
  std::optional<KeyPlan> plan = DefaultKeyPlan(spec);
  if (!plan) {
    throw FieldError("kv_type", "loops",
                     fmt::format("auto, bf16, int8 or loops:PLAN: no plan of keys was measured for "
                                 "{} models of {} loops, loopspec calibrate --keys measures one",
                                 spec.family, spec.recurrence));
  }
  if (device == DeviceClass::kCpu) return {*std::move(plan)};
  if (plan->HasResiduals()) {
    throw FieldError("kv_type", "loops",
                     fmt::format("auto, bf16 or int8 on a GPU, which reads no residuals: the plan "
                                 "of {} models of {} loops, {}, is for the CPU",
                                 spec.family, spec.recurrence, plan->text()));
  }
  return {*std::move(plan), kSpanOfGpuPrompts};
}

}  // namespace

std::unique_ptr<Backend> MakeBackend(const Model& model, const BackendOptions& options,
                                     const std::string& device) {
  const int gpu = ResolveDevice(device, options.compute);
  if (device == "auto" && !GpuComputes(options.compute) && CudaDeviceCount() > 0)
    LogWarning("compute f32 was asked for, which the GPU does not do: this runs on the CPU");
  if (gpu >= 0 && options.key_plan && options.key_plan->span < kSpanOfGpuPrompts) {
    LogWarning(
        "a GPU reads prompts in pieces of two spans of a plan of keys, and spans of {} are "
        "short: kv_type loops:{}@{} is faster, and writes another text",
        options.key_plan->span, options.key_plan->plan.text(), kSpanOfGpuPrompts);
  }
  return gpu < 0 ? MakeCpuBackend(model, options) : MakeCudaBackend(model, options, gpu);
}

bool IsCpu(const EngineOptions& options) {
  return ResolveDevice(options.device, ParseCompute(options.compute)) < 0;
}

std::string ChipOf(const EngineOptions& options) {
  const int gpu = ResolveDevice(options.device, ParseCompute(options.compute));
  return gpu < 0 ? CpuName() : CudaDeviceName(gpu);
}

std::string NameOfPrecision(const std::string& compute, const std::string& kv_type) {
  return kv_type.empty() || kv_type == compute ? compute : compute + ", keys " + kv_type;
}

std::string NameOfPrecision(const BackendOptions& options) {
  return NameOfPrecision(options.compute == ComputeMode::kF32 ? "f32" : "bf16",
                         NameOfKvType(options));
}

ComputeMode ParseCompute(const std::string& text) {
  if (text == "auto") return ComputeMode::kAuto;
  if (text == "f32") return ComputeMode::kF32;
  if (text == "bf16") return ComputeMode::kBF16;
  throw FieldError("compute", text, "auto, f32 or bf16");
}

KvChoice ParseKvType(const std::string& text, ComputeMode compute, const ModelSpec& spec,
                     DeviceClass device) {
  if (text == "int8") return {KvType::kInt8};
  if (text == "bf16" && compute == ComputeMode::kF32)
    throw FieldError("kv_type", "bf16", "auto, int8, loops or loops:PLAN, since compute is f32");
  if (text == "auto" || text == "bf16") return {KvType::kCompute};
  const bool plan = text.starts_with("loops:");
  if ((plan || text == "loops") && spec.recurrence < 2)
    throw FieldError("kv_type", text, "auto, bf16 or int8, since this model has one loop");
  if (plan) return {KvType::kLoops, SpannedKeyPlan::Parse(text.substr(6), spec.recurrence)};
  if (text == "loops") return {KvType::kLoops, DefaultPlanFor(spec, device)};
  if (text == "terminal") {
    throw FieldError("kv_type", text,
                     "auto, bf16, int8, loops or loops:PLAN: it keeps the last loop's keys alone, "
                     "so that a token's first loop waits for the last loop of the token before it "
                     "and no draft can run ahead");
  }
  throw FieldError("kv_type", text, "auto, bf16, int8, loops or loops:PLAN");
}

std::unique_ptr<Backend> MakeBackend(const Model& model, const EngineOptions& options,
                                     std::span<const int> depths, int drafts) {
  if (options.cells < 1) throw FieldError("cells", fmt::format("{}", options.cells), "1 or more");
  BackendOptions backend;
  backend.readout_depths = ReadoutDepths(depths, model.spec.recurrence);
  backend.drafts = drafts;
  backend.cells = options.cells;
  backend.kv_memory = options.kv_memory;
  if (options.kv_share < 0 || options.kv_share > 1)
    Fail("the share of memory for keys and values is {}, expected 0 to 1", options.kv_share);
  backend.kv_share = options.kv_share;
  backend.kv_positions = options.kv_positions;
  backend.threads = options.threads;
  backend.state_seed = options.state_seed;
  backend.compute = ParseCompute(options.compute);
  KvChoice keys = ParseKvType(options.kv_type, backend.compute, model.spec,
                              IsCpu(options) ? DeviceClass::kCpu : DeviceClass::kGpu);
  backend.kv_type = keys.type;
  backend.key_plan = std::move(keys.plan);
  if (backend.kv_memory == 0 && backend.kv_share == 0 && backend.kv_positions == 0 &&
      IsCpu(options))
    backend.kv_positions = CpuPositions(model.spec, backend);
  return MakeBackend(model, backend, options.device);
}

}  // namespace loopspec

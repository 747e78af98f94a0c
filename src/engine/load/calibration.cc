#include "engine/load/calibration.h"

#include <fmt/format.h>

#include <functional>

#include "base/environment.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/thread_placement.h"
#include "engine/load/device.h"

namespace loopspec {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostBytes = size_t{1} << 24;  // a calibration has a few hundred kilobytes

// Nothing when there is no file.
std::optional<Calibration> Read(const fs::path& file, const Model& model) {
  std::error_code error;
  if (!fs::exists(file, error)) return std::nullopt;
  try {
    return ParseCalibration(ReadFile(file, kMostBytes), file.string(), model);
  } catch (const Error& unusable) {
    LogWarning("the calibration is not used: {}", unusable.what());
    return std::nullopt;
  }
}

// A number from 0 to 1 of each element.
std::vector<double> ReadShares(const Json& entry, const char* key, const std::string& what) {
  const auto list = entry.is_object() ? entry.find(key) : entry.end();
  if (!entry.is_object() || list == entry.end() || !list->is_array())
    Fail("{}: a set of depths has no list \"{}\"", what, key);
  std::vector<double> shares;
  for (const Json& share : *list) {
    shares.push_back(share.is_number() ? share.get<double>() : -1.0);
    if (!(shares.back() >= 0 && shares.back() <= 1))
      Fail("{}: \"{}\" of a set of depths: expected numbers from 0 to 1", what, key);
  }
  return shares;
}

std::vector<int> ReadDepths(const Json& list, const std::string& whose, const std::string& what,
                            int recurrence) {
  std::vector<int> depths;
  for (const Json& depth : list) {
    if (!depth.is_number_integer()) Fail("{}: depths of {}: expected whole numbers", what, whose);
    const auto value = depth.get<int64_t>();
    depths.push_back(value < 0 || value > 4096 ? 0 : static_cast<int>(value));
  }
  try {
    CheckDepths(depths, recurrence);
  } catch (const Error& error) {
    Fail("{}: {}", what, error.what());
  }
  return depths;
}

CalibratedDepths ReadChoice(const Json& entry, const std::string& whose, const std::string& what,
                            int recurrence) {
  const auto depths = entry.is_object() ? entry.find("depths") : entry.end();
  if (!entry.is_object() || depths == entry.end() || !depths->is_array())
    Fail("{}: {} has no list \"depths\"", what, whose);
  const auto text = [&](const char* key) {
    const auto found = FindString(entry, key, what);
    if (!found) Fail("{}: {} has no \"{}\"", what, whose, key);
    return *found;
  };
  CalibratedDepths choice;
  choice.depths = ReadDepths(*depths, whose, what, recurrence);
  choice.machine.chip = text("chip");
  choice.machine.compute = text("compute");
  choice.machine.plan = PlanIn(FindString(entry, "kv_type", what).value_or(""));
  choice.machine.threads =
      static_cast<int>(FindInt(entry, "threads", what, 0, 1 << 20).value_or(0));
  choice.date = text("date");
  choice.version = text("version");
  choice.prompts = text("prompts");
  choice.context = FindInt(entry, "context", what, 0, int64_t{1} << 40).value_or(0);
  return choice;
}

// The rates of one view: "greedy" or "sampled". A file may lack them.
std::map<std::vector<int>, AcceptancePrior> ReadRates(const Json& json, const char* view,
                                                      const std::string& what, int recurrence) {
  std::map<std::vector<int>, AcceptancePrior> rates;
  const auto list = json.find(view);
  if (list == json.end()) return rates;
  if (!list->is_array()) Fail("{}: \"{}\" is no list", what, view);
  for (const Json& entry : *list) {
    AcceptancePrior prior;
    prior.rates = ReadShares(entry, "accepted", what);
    const std::vector<double> gates = ReadShares(entry, "gate", what);
    const auto depths = entry.find("depths");
    if (depths == entry.end() || !depths->is_array() || depths->size() != prior.rates.size())
      Fail("{}: \"{}\": expected as many depths as rates", what, view);
    prior.gate = 0;
    for (const double gate : gates) prior.gate += gate / static_cast<double>(gates.size());
    rates[ReadDepths(*depths, view, what, recurrence)] = prior;
  }
  return rates;
}

}  // namespace

AcceptancePrior Calibration::Prior(const std::vector<int>& proposals, bool greedy_text) const {
  const auto& rates = greedy_text ? greedy : sampled;
  const auto found = rates.find(proposals);
  return found == rates.end() ? AcceptancePrior{} : found->second;
}

std::string NameOf(DeviceClass device) {
  return device == DeviceClass::kCpu ? "cpu" : "gpu";
}

std::string SectionOf(DeviceClass device, const std::string& plan) {
  return NameOf(device) + (plan.empty() ? "" : ", keys " + plan);
}

std::string PlanIn(const std::string& kv_type) {
  return kv_type.starts_with("loops:") ? kv_type : "";
}

std::string ViewName(bool greedy) {
  return greedy ? "greedy" : "sampling";
}

std::string NameOf(const Machine& machine) {
  return fmt::format("{}{}, {}{}", machine.chip,
                     machine.threads > 0 ? fmt::format(", {} thread{}", machine.threads,
                                                       machine.threads == 1 ? "" : "s")
                                         : "",
                     machine.compute, machine.plan.empty() ? "" : ", keys " + machine.plan);
}

Machine MachineFor(const Model& model, const EngineOptions& options) {
  const bool cpu = IsCpu(options);
  const ComputeMode compute =
      cpu ? CpuComputeMode(model, ParseCompute(options.compute)) : ComputeMode::kBF16;
  Machine machine;
  machine.chip = ChipOf(options);
  if (cpu) machine.threads = options.threads > 0 ? options.threads : UsableCores();
  machine.compute = compute == ComputeMode::kF32 ? "f32" : "bf16";
  const KvChoice keys = ParseKvType(options.kv_type, compute, model.spec,
                                    cpu ? DeviceClass::kCpu : DeviceClass::kGpu);
  if (keys.plan) machine.plan = "loops:" + keys.plan->text();
  return machine;
}

OrderedJson CalibrationModel(const Model& model) {
  const ModelSpec& spec = model.spec;
  return {{"family", spec.family},    {"recurrence", spec.recurrence},
          {"hidden", spec.hidden},    {"vocab", spec.vocab},
          {"core", spec.core_layers}, {"parameters", model.weights.parameters}};
}

Calibration ParseCalibration(const std::string& text, const std::string& what, const Model& model) {
  const Json json = ParseJson(text, what);
  if (!json.is_object()) Fail("{}: expected a JSON object", what);
  const auto version = FindInt(json, "loopspec_calibration", what, 0, INT32_MAX);
  if (version != kCalibrationVersion) {
    Fail("{}: expected a calibration of version {}, found {}; loopspec calibrate makes one", what,
         kCalibrationVersion, version ? std::to_string(*version) : "none");
  }
  const auto found = json.find("model");
  const Json expected = CalibrationModel(model);
  if (found == json.end() || *found != expected) {
    Fail("{}: it is of another model: found {}, expected {}", what,
         found == json.end() ? "none" : found->dump().substr(0, 200), expected.dump());
  }
  const auto devices = json.find("devices");
  if (devices == json.end() || !devices->is_object())
    Fail("{}: \"devices\" is missing or no object", what);
  Calibration calibration;
  for (const auto& [device, views] : devices->items()) {
    if (!views.is_object()) Fail("{}: \"devices\", \"{}\" is no object", what, device);
    for (const auto& [view, entry] : views.items())
      calibration.choices[{device, view}] = ReadChoice(
          entry, fmt::format("\"{}\", \"{}\"", device, view), what, model.spec.recurrence);
  }
  calibration.greedy = ReadRates(json, "greedy", what, model.spec.recurrence);
  calibration.sampled = ReadRates(json, "sampled", what, model.spec.recurrence);
  return calibration;
}

fs::path CalibrationBeside(const fs::path& folder) {
  return folder / kCalibrationName;
}

std::optional<fs::path> CalibrationInCache(const fs::path& folder) {
  const fs::path cache = UserFolder("XDG_CACHE_HOME", ".cache");
  if (cache.empty()) return std::nullopt;
  std::error_code error;
  const fs::path real = fs::weakly_canonical(folder, error);
  const std::string key = error ? folder.string() : real.string();
  return cache / "loopspec" / fmt::format("calibration-{:016x}", std::hash<std::string>{}(key)) /
         kCalibrationName;
}

std::vector<int> UncalibratedDepths(const ModelSpec& spec, DeviceClass device) {
  const auto& own = spec.draft_depths;
  if (own && (own->empty() || own->back() < spec.recurrence)) return *own;
  return DefaultDepths(spec.recurrence, device);
}

ChosenDepths ChooseDefaultDepths(const fs::path& folder, const Model& model,
                                 const EngineOptions& options) {
  const DeviceClass device_class = IsCpu(options) ? DeviceClass::kCpu : DeviceClass::kGpu;
  ChosenDepths chosen;
  chosen.depths = UncalibratedDepths(model.spec, device_class);
  chosen.sampled_depths = chosen.depths;
  if (!options.calibration) return chosen;
  std::vector<fs::path> files = {CalibrationBeside(folder)};
  if (const auto cached = CalibrationInCache(folder)) files.push_back(*cached);
  const Machine here = MachineFor(model, options);
  const std::string section = SectionOf(device_class, here.plan);
  for (const fs::path& file : files) {
    const auto calibration = Read(file, model);
    if (!calibration) continue;
    if (!here.plan.empty())
      chosen.note = fmt::format(
          "{} was not measured with keys {}: its rates of drafts are used, its depths are not",
          file.string(), here.plan);
    for (const bool greedy : {true, false}) {
      const auto found = calibration->choices.find({section, ViewName(greedy)});
      if (found == calibration->choices.end()) continue;
      if (found->second.machine != here) {
        chosen.note = fmt::format(
            "{} was measured on {}, this is {}: its rates of drafts are used, its depths are not",
            file.string(), NameOf(found->second.machine), NameOf(here));
        continue;
      }
      (greedy ? chosen.depths : chosen.sampled_depths) = found->second.depths;
      (greedy ? chosen.greedy_choice : chosen.sampled_choice) = found->second;
      chosen.file = file;
    }
    // How drafts fare is the model's own, whatever it runs on.
    if (chosen.calibration.greedy.empty() && chosen.calibration.sampled.empty())
      chosen.calibration = *calibration;
    if (!chosen.file) continue;
    chosen.calibration = *calibration;
    chosen.note.clear();
    break;
  }
  return chosen;
}

}  // namespace loopspec

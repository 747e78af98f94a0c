#include "engine/calibration.h"

#include <fmt/format.h>

#include <cstdlib>
#include <functional>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "engine/device.h"

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

}  // namespace

std::string NameOf(DeviceClass device) {
  return device == DeviceClass::kCpu ? "cpu" : "gpu";
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
    Fail("{}: expected a calibration of version {}, found {}", what, kCalibrationVersion,
         version ? std::to_string(*version) : "none");
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
  for (const auto& [device, entry] : devices->items()) {
    const auto depths = entry.is_object() ? entry.find("depths") : entry.end();
    if (!entry.is_object() || depths == entry.end() || !depths->is_array())
      Fail("{}: \"devices\", \"{}\" has no list \"depths\"", what, device);
    std::vector<int>& list = calibration.depths[device];
    for (const Json& depth : *depths) {
      if (!depth.is_number_integer())
        Fail("{}: depths of \"{}\": expected whole numbers", what, device);
      const auto value = depth.get<int64_t>();
      list.push_back(value < 0 || value > 4096 ? 0 : static_cast<int>(value));
    }
    try {
      CheckDepths(list, model.spec.recurrence);
    } catch (const Error& error) {
      Fail("{}: {}", what, error.what());
    }
  }
  return calibration;
}

fs::path CalibrationBeside(const fs::path& folder) {
  return folder / kCalibrationName;
}

std::optional<fs::path> CalibrationInCache(const fs::path& folder) {
  const auto environment = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  fs::path cache = environment("XDG_CACHE_HOME");
  if (cache.empty() && !environment("HOME").empty())
    cache = fs::path(environment("HOME")) / ".cache";
  if (cache.empty()) return std::nullopt;
  std::error_code error;
  const fs::path real = fs::weakly_canonical(folder, error);
  const std::string key = error ? folder.string() : real.string();
  return cache / "loopspec" / fmt::format("calibration-{:016x}", std::hash<std::string>{}(key)) /
         kCalibrationName;
}

ChosenDepths ChooseDefaultDepths(const fs::path& folder, const Model& model,
                                 const std::string& device) {
  const DeviceClass device_class = IsCpu(device) ? DeviceClass::kCpu : DeviceClass::kGpu;
  std::vector<fs::path> files = {CalibrationBeside(folder)};
  if (const auto cached = CalibrationInCache(folder)) files.push_back(*cached);
  for (const fs::path& file : files) {
    const auto calibration = Read(file, model);
    if (!calibration) continue;
    const auto depths = calibration->depths.find(NameOf(device_class));
    if (depths != calibration->depths.end()) return {depths->second, file};
  }
  return {DefaultDepths(model.spec.recurrence, device_class), std::nullopt};
}

}  // namespace loopspec

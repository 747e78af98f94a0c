// Proposal depths that a calibration found best for a model, kept in a file: beside the model, or
// in the user's cache where that folder cannot be written to. Depths decide sampled text, so they
// come from this file or from a rule, never from a fresh timing.
//
// The file holds facts of the model (how often drafts at a depth are accepted), which are true
// everywhere, and choices that rest on speeds, which are true of one chip, thread count, precision
// and plan of keys. A choice that was made elsewhere decides nothing here.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json_fwd.h"
#include "decode/acceptance.h"
#include "decode/depths.h"
#include "loopspec/loopspec.h"
#include "model/model.h"

namespace loopspec {

inline constexpr const char* kCalibrationName = "loopspec-calibration.json";
inline constexpr int kCalibrationVersion = 2;

// What speeds depend on.
struct Machine {
  std::string chip;
  int threads = 0;      // of a CPU; 0 on a GPU
  std::string compute;  // "f32", "bf16"
  // A plan of keys, "loops:int8*8,last@64": drafts depend on it, and so does what a row costs.
  // Empty: bf16 and int8 keys, which share their calibrations.
  std::string plan = {};

  bool operator==(const Machine&) const = default;
};
// "Xeon, 2 threads, bf16, keys loops:int8*8,last@64"
std::string NameOf(const Machine& machine);
// What these options would run the model on. Throws Error when there is no such device.
Machine MachineFor(const Model& model, const EngineOptions& options);

// The best depths for one kind of decoding on one device, and where they come from.
struct CalibratedDepths {
  std::vector<int> depths;  // none: autoregressive decoding was fastest
  Machine machine;
  std::string date, version, prompts;  // when, by which version, over which prompts
  int64_t context = 0;                 // mean committed positions
};

// What decoding takes from the file. It holds more, for people to read.
struct Calibration {
  // By section ("cpu", see SectionOf) and kind of decoding ("greedy", "sampling").
  std::map<std::pair<std::string, std::string>, CalibratedDepths> choices;
  // How often drafts were accepted, by the depths that made them.
  std::map<std::vector<int>, AcceptancePrior> greedy, sampled;

  // What to assume of drafts at `depths` until verification has spoken: what was calibrated, else
  // the paper's rates. No text depends on it.
  AcceptancePrior Prior(const std::vector<int>& proposals, bool greedy_text) const;
};

std::string NameOf(DeviceClass device);
// The part of the file that holds choices for such devices with this plan of keys, or without one,
// so that both can be calibrated: "cpu", "gpu, keys loops:int8*8,last@512".
std::string SectionOf(DeviceClass device, const std::string& plan);
// Of a way to keep keys and values, as NameOfKvType says it, the plan; empty: it is none.
std::string PlanIn(const std::string& kv_type);
// "greedy", "sampling"
std::string ViewName(bool greedy);

// What the file says of the model it was measured on; a file that says anything else is not its.
OrderedJson CalibrationModel(const Model& model);

// Throws Error, in one sentence, when the text is no calibration, or one of another model.
Calibration ParseCalibration(const std::string& text, const std::string& what, const Model& model);

// Where calibrations of a model are kept: beside it, and in the cache (nothing when there is no
// such folder).
std::filesystem::path CalibrationBeside(const std::filesystem::path& folder);
std::optional<std::filesystem::path> CalibrationInCache(const std::filesystem::path& folder);

// Depths while nothing has been measured: the family's own where it has some that fit R, else by
// the rule of decode/depths.h. Empty: no drafts, early children alone.
std::vector<int> UncalibratedDepths(const ModelSpec& spec, DeviceClass device);

struct ChosenDepths {
  std::vector<int> depths, sampled_depths;  // for greedy and for sampled text
  // The calibration that they are from, with its entry; nothing: by rule.
  std::optional<std::filesystem::path> file;
  std::optional<CalibratedDepths> greedy_choice, sampled_choice;
  std::string note;         // why choices of a calibration that is there are not used; else empty
  Calibration calibration;  // of the model; empty where there is none

  const std::vector<int>& For(bool greedy) const { return greedy ? depths : sampled_depths; }
};
// The depths that decoding uses by default, by options.device, compute, threads and calibration. A
// file that cannot be used is passed over with a note in the log.
ChosenDepths ChooseDefaultDepths(const std::filesystem::path& folder, const Model& model,
                                 const EngineOptions& options);

}  // namespace loopspec

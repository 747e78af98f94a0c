// Proposal depths that a calibration found best for a model, kept in a file: beside the model, or
// in the user's cache where that folder cannot be written to. Depths decide sampled text, so they
// come from this file or from a rule, never from a fresh timing.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "decode/acceptance.h"
#include "decode/depths.h"
#include "model/model.h"

namespace loopspec {

inline constexpr const char* kCalibrationName = "loopspec-calibration.json";
inline constexpr int kCalibrationVersion = 1;

// What decoding takes from the file. It holds more, for people to read.
struct Calibration {
  std::map<std::string, std::vector<int>> depths;  // by device class: "cpu", "gpu"
  // How often drafts were accepted, by the depths that made them.
  std::map<std::vector<int>, AcceptancePrior> greedy, sampled;

  // What to assume of drafts at `depths` until verification has spoken: what was calibrated, else
  // the paper's rates. No text depends on it.
  AcceptancePrior Prior(const std::vector<int>& proposals, bool greedy_text) const;
};

std::string NameOf(DeviceClass device);

// What the file says of the model it was measured on; a file that says anything else is not its.
OrderedJson CalibrationModel(const Model& model);

// Throws Error, in one sentence, when the text is no calibration, or one of another model.
Calibration ParseCalibration(const std::string& text, const std::string& what, const Model& model);

// Where calibrations of a model are kept: beside it, and in the cache (nothing when there is no
// such folder).
std::filesystem::path CalibrationBeside(const std::filesystem::path& folder);
std::optional<std::filesystem::path> CalibrationInCache(const std::filesystem::path& folder);

struct ChosenDepths {
  std::vector<int> depths;
  std::optional<std::filesystem::path> file;  // the calibration that they are from; else by rule
  Calibration calibration;                    // of the model; empty where there is none
};
// The depths that decoding uses by default. A file that cannot be used is passed over with a note.
ChosenDepths ChooseDefaultDepths(const std::filesystem::path& folder, const Model& model,
                                 const std::string& device);

}  // namespace loopspec

// Where calibrations of a model are kept: the file that decoding goes by, with its page, and what a
// busy machine gave, which waits for a second run that comes to the same choices.
#pragma once

#include <filesystem>
#include <span>
#include <utility>
#include <vector>

#include "calibrate/calibration_report.h"

namespace loopspec {

inline constexpr const char* kCalibrationPageName = "loopspec-calibration.html";

class CalibrationFiles {
 public:
  // The first of these folders that takes them.
  explicit CalibrationFiles(std::vector<std::filesystem::path> folders)
      : folders_(std::move(folders)) {}
  // Where decoding finds a calibration of the model in `folder`: beside it, or in the cache.
  static CalibrationFiles Of(const std::filesystem::path& folder);

  // Whether an earlier run on a busy machine chose the same.
  bool Confirm(std::span<const CalibrationReport> reports) const;
  // Writes the file and the page, and forgets earlier runs on a busy machine. Returns the folder;
  // throws Error where none takes them.
  std::filesystem::path Write(std::span<const CalibrationReport> reports, const Model& model) const;
  // Returns the file; empty: no folder takes it.
  std::filesystem::path KeepPending(std::span<const CalibrationReport> reports,
                                    const Model& model) const;
  // Every file that may be there.
  std::vector<std::filesystem::path> All() const;

 private:
  std::vector<std::filesystem::path> folders_;
};

}  // namespace loopspec

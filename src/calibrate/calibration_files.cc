#include "calibrate/calibration_files.h"

#include <exception>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/whole_file.h"
#include "calibrate/calibration_page.h"
#include "engine/load/calibration.h"

namespace loopspec {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPendingName = "loopspec-calibration.pending.json";

OrderedJson ChoicesOf(std::span<const CalibrationReport> reports) {
  OrderedJson choices = OrderedJson::object();
  for (const CalibrationReport& report : reports)
    choices[ViewName(report.view == RatesView::kGreedy)] = report.chosen_depths;
  return choices;
}

// A choice that was made with other keys confirms nothing.
std::string PendingSection(const OrderedJson& pending) {
  const auto section = pending.find("section");
  return section != pending.end() && section->is_string() ? section->get<std::string>() : "";
}

}  // namespace

CalibrationFiles CalibrationFiles::Of(const fs::path& folder) {
  std::vector<fs::path> folders = {folder};
  if (const auto cached = CalibrationInCache(folder)) folders.push_back(cached->parent_path());
  return CalibrationFiles(std::move(folders));
}

bool CalibrationFiles::Confirm(std::span<const CalibrationReport> reports) const {
  for (const fs::path& folder : folders_) {
    try {
      const fs::path file = folder / kPendingName;
      if (!fs::is_regular_file(file)) continue;
      const OrderedJson kept = ParseOrderedJson(ReadFile(file), file.string());
      if (kept.contains("choices") && kept["choices"] == ChoicesOf(reports) &&
          PendingSection(kept) == reports[0].section)
        return true;
    } catch (const std::exception&) {
      // As if it were not there.
    }
  }
  return false;
}

fs::path CalibrationFiles::Write(std::span<const CalibrationReport> reports,
                                 const Model& model) const {
  std::string why = "there is no cache folder";
  for (const fs::path& folder : folders_) {
    std::error_code error;
    fs::create_directories(folder, error);
    const fs::path file = folder / kCalibrationName;
    try {
      const std::string old = fs::is_regular_file(file, error) ? ReadFile(file) : "";
      WriteWholeFile(file, CalibrationJson(reports, model, old).dump(1) + "\n");
      WriteWholeFile(folder / kCalibrationPageName, CalibrationPage(reports));
    } catch (const Error& failure) {
      why = failure.what();
      continue;
    }
    for (const fs::path& other : folders_) fs::remove(other / kPendingName, error);
    return folder;
  }
  Fail("the calibration cannot be kept: {}", why);
}

fs::path CalibrationFiles::KeepPending(std::span<const CalibrationReport> reports,
                                       const Model& model) const {
  const OrderedJson kept = {{"section", reports[0].section},
                            {"choices", ChoicesOf(reports)},
                            {"calibration", CalibrationJson(reports, model, "")}};
  for (const fs::path& folder : folders_) {
    std::error_code error;
    fs::create_directories(folder, error);
    try {
      WriteWholeFile(folder / kPendingName, kept.dump(1) + "\n");
      return folder / kPendingName;
    } catch (const Error&) {
      // The next folder may take it.
    }
  }
  return {};
}

std::vector<fs::path> CalibrationFiles::All() const {
  std::vector<fs::path> files;
  for (const fs::path& folder : folders_) {
    for (const char* name : {kCalibrationName, kCalibrationPageName, kPendingName})
      files.push_back(folder / name);
  }
  return files;
}

}  // namespace loopspec

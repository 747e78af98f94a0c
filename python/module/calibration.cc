// A calibration of a loaded model, as `loopspec calibrate` makes it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "calibrate/calibration_files.h"
#include "calibrate/calibration_page.h"
#include "calibrate/calibration_run.h"
#include "calibrate/calibration_text.h"
#include "engine/load/calibration.h"
#include "engine/load/step_cost.h"
#include "engine/session.h"
#include "engine_handle.h"
#include "given_up.h"
#include "in_call.h"
#include "loopspec/engine.h"
#include "signals.h"

namespace loopspec::python {
namespace nb = nanobind;
using namespace nb::literals;

namespace {

struct CalibrationResult {
  std::shared_ptr<const LoadedModel> loaded;
  std::shared_ptr<Backend> backend;
  std::vector<CalibrationReport> reports;

  double spread() const {
    double most = 1;
    for (const CalibrationReport& report : reports) most = std::max(most, report.spread);
    return most;
  }
  bool busy() const {
    return std::any_of(reports.begin(), reports.end(),
                       [](const CalibrationReport& report) { return report.busy(); });
  }
  CalibrationFiles Files() const { return CalibrationFiles::Of(loaded->folder()); }
  // Returns the file that decoding goes by.
  std::string Write() const {
    const std::filesystem::path folder = Files().Write(reports, loaded->model());
    SaveStepCost(*backend, reports[0].step_cost);
    return (folder / kCalibrationName).string();
  }
  std::string Text() const {
    std::string text;
    for (const CalibrationReport& report : reports) text += CalibrationTables(report) + "\n";
    return text;
  }
  // "greedy", "sampling"; nothing where that view was not looked at.
  std::optional<std::vector<int>> Chosen(const std::string& view) const {
    for (const CalibrationReport& report : reports) {
      if (ViewName(report.view == RatesView::kGreedy) == view) return report.chosen_depths;
    }
    return std::nullopt;
  }
};

struct Asked {
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::string> views;  // greedy, sampling
  std::string date, version, command, name;
  CalibrationOptions run;
};

CalibrationReport NewReport(const Asked& asked, const Engine& engine, const Backend& backend,
                            RatesView view) {
  CalibrationReport report;
  report.model = engine.facts().name;
  report.Describe(backend);
  report.date = asked.date;
  report.version = asked.version;
  report.command = asked.command;
  report.prompts = asked.name;
  report.view = view;
  return report;
}

// How far the work is: written by its thread, told to Python by the one that waits.
class Told {
 public:
  void Stop() { stopped_ = true; }
  bool stopped() const { return stopped_; }
  void Tell(const char* what, int64_t done, int64_t total, const char* unit) {
    const std::lock_guard lock(mutex_);
    last_ = {what, done, total, unit};
    fresh_ = true;
  }
  // With Python's lock away.
  void Show(const nb::object& progress) {
    Last last;
    {
      const std::lock_guard lock(mutex_);
      if (!std::exchange(fresh_, false)) return;
      last = last_;
    }
    const nb::gil_scoped_acquire lock;
    if (!progress.is_none()) progress(last.what, last.done, last.total, last.unit);
  }

 private:
  struct Last {
    const char* what = "";
    int64_t done = 0, total = 0;
    const char* unit = "";
  };

  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  Last last_;
  bool fresh_ = false;
};

std::unique_ptr<CalibrationResult> Calibrate(const std::shared_ptr<Engine>& engine, Asked asked,
                                             Told& told) {
  auto result = std::make_unique<CalibrationResult>();
  result->loaded = engine->session().shared_loaded();
  const Model& model = result->loaded->model();
  CalibrationOptions& run = asked.run;
  CheckCalibration(run, model.spec, engine->facts().name);
  std::vector<CalibrationPrompt> prompts;
  int64_t sum = 0;
  for (size_t i = 0; i < asked.prompts.size() && sum < run.positions; ++i) {
    prompts.push_back({std::move(asked.prompts[i]), fmt::format("prompts[{}]", i)});
    CheckPrompt(run, prompts.back(), model.spec);
    sum += LookedAt(run, prompts.back());
  }
  const EngineOptions& options = engine->session().options();
  result->backend = PrepareCalibration(
      model, ChooseDefaultDepths(result->loaded->folder(), model, options), prompts, options, run);
  run.stop_tokens = result->loaded->special().eos;
  CalibrationHooks hooks;
  hooks.interrupted = [&] { return told.stopped(); };
  hooks.progress = [&](const char* what, int64_t done, int64_t total, const char* unit) {
    told.Tell(what, done, total, unit);
  };
  for (const std::string& view : asked.views) {
    result->reports.push_back(
        NewReport(asked, *engine, *result->backend,
                  view == "greedy" ? RatesView::kGreedy : RatesView::kSampled));
    RunCalibration(run, result->loaded, prompts, result->backend, hooks, result->reports.back());
  }
  return result;
}

std::unique_ptr<CalibrationResult> CalibrateEngine(
    const EngineHandle& engine, std::vector<std::vector<int32_t>> prompts,
    std::vector<std::string> views, const SamplingParams& sampling, int positions, int max_tokens,
    int proposals, int measure, int measure_prompts, int repeat, uint64_t seed, std::string date,
    std::string version, std::string command, std::string name, nb::object progress) {
  Asked asked{std::move(prompts),
              std::move(views),
              std::move(date),
              std::move(version),
              std::move(command),
              std::move(name),
              {}};
  asked.run.sampling = sampling;
  asked.run.positions = positions;
  asked.run.max_tokens = max_tokens;
  asked.run.proposals = proposals;
  asked.run.measure = measure;
  asked.run.measure_prompts = measure_prompts;
  asked.run.repeat = repeat;
  asked.run.seed = seed;
  const InCall call;
  const auto told = std::make_shared<Told>();
  const nb::gil_scoped_release without;
  try {
    return Await(std::async(std::launch::async,
                            [engine = engine.Get(), asked = std::move(asked), told]() mutable {
                              return Calibrate(engine, std::move(asked), *told);
                            }),
                 [&] {
                   CheckSignals();
                   told->Show(progress);
                 });
  } catch (...) {
    told->Stop();  // what is given up ends soon
    throw;
  }
}

}  // namespace

void BindCalibration(nb::module_& module) {
  nb::class_<CalibrationResult>(module, "CalibrationResult")
      .def_prop_ro("spread", &CalibrationResult::spread)
      .def_prop_ro("busy", &CalibrationResult::busy)
      .def_prop_ro("text", &CalibrationResult::Text)
      .def_prop_ro("page",
                   [](const CalibrationResult& self) { return CalibrationPage(self.reports); })
      .def_prop_ro("json",
                   [](const CalibrationResult& self) {
                     return CalibrationJson(self.reports, self.loaded->model(), "").dump();
                   })
      .def_prop_ro("confirmed",
                   [](const CalibrationResult& self) { return self.Files().Confirm(self.reports); })
      .def("chosen", &CalibrationResult::Chosen, "view"_a)
      .def("write", &CalibrationResult::Write)
      .def("keep_pending", [](const CalibrationResult& self) {
        self.Files().KeepPending(self.reports, self.loaded->model());
      });
  module.def("calibrate", &CalibrateEngine, "engine"_a, nb::kw_only(), "prompts"_a, "views"_a,
             "sampling"_a, "positions"_a, "max_tokens"_a, "proposals"_a, "measure"_a,
             "measure_prompts"_a, "repeat"_a, "seed"_a, "date"_a, "version"_a, "command"_a,
             "name"_a, "progress"_a.none() = nb::none());
}

}  // namespace loopspec::python

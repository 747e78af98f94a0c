// What records of an experiment say, in tables and charts.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "calibrate/distance.h"
#include "experiments/experiment.h"
#include "experiments/run_totals.h"
#include "report/html_page.h"

namespace loopspec::measure {

// One file of records: an experiment on one model.
struct ExperimentResult {
  Experiment experiment;
  std::optional<Experiment> paper;  // the paper's own, where this one has no figures
  std::string model;
  int recurrence = 0;
  std::string device, chip, compute, version;
  int threads = 0;
  int max_tokens = 0;        // texts were cut at so many new tokens; 0: as declared
  bool unsandboxed = false;  // programs of the model ran without a sandbox
  double bandwidth = 0;
  // By group, then by way of decoding.
  std::map<std::string, std::map<std::string, RunTotals>> runs;
  std::map<std::string, DistanceSums> distances;  // by group

  // Nothing when it was not run.
  const RunTotals* Find(const std::string& task, const std::string& sampling,
                        const std::string& way) const;
  // Against autoregressive decoding of the same group.
  WayFigures Figures(const std::string& task, const std::string& sampling,
                     const ExperimentDecode& decode) const;
};

// A task's name as the paper has it: "GSM8K".
std::string TaskTitle(const std::string& task);

// Adds the tables and charts of one experiment, for all models that ran it.
void AddExperiment(const std::vector<ExperimentResult>& results, HtmlPage& page);

}  // namespace loopspec::measure

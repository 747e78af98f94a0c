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

namespace loopspec::experiments {

// One file of records: an experiment on one model.
struct ExperimentResult {
  Experiment experiment;
  std::optional<Experiment> paper;  // the paper's own, where this one has no figures
  std::string model;                // the declared model whose figures stand beside
  std::string label;                // as tables name it: what was measured, not what it stands for
  // What was measured: the checkpoint's own name, its size, element type and a hash of its weights.
  std::string checkpoint, dtype, weights;
  int64_t parameters = 0;
  int recurrence = 0;
  std::string device, chip, version, date, command;
  std::string precision;           // "bf16", "bf16, keys loops:int8*8,last@64"
  std::vector<std::string> notes;  // on prompts that differ from the paper's
  int threads = 0;
  int max_tokens = 0;          // of each text, instead of what the tasks declare; 0: as declared
  bool earlier_clock = false;  // recorded by the clock that started at the first token; converted
  double bandwidth = 0;
  int64_t kv_bytes_per_token = 0, peak_memory = 0;  // 0: not recorded
  // By group, then by decoding spec.
  std::map<std::string, std::map<std::string, RunTotals>> runs;
  std::map<std::string, DistanceSums> distances;  // by group

  // Nothing when it was not run.
  const RunTotals* Find(const std::string& task, const std::string& sampling,
                        const std::string& spec) const;
  // Against autoregressive decoding of the same group.
  SpecFigures Figures(const std::string& task, const std::string& sampling,
                      const ExperimentDecode& decode) const;
};

// A task's name as the paper has it: "GSM8K".
std::string TaskTitle(const std::string& task);
// The decoding specs of a result without the one that all others are compared with.
std::vector<ExperimentDecode> Compared(const ExperimentResult& result);
// "1, 2", "2, 8 residual": as the paper's tables name a row.
std::string RowName(const ExperimentDecode& decode);
// The paper's figure for a cell; nothing where it has none. Figures of the paper's algorithm stand
// beside its own schedule alone, where that was run.
std::optional<double> PaperValue(const Experiment& experiment, const std::string& model,
                                 const std::string& task, const std::string& sampling,
                                 const ExperimentDecode* decode, const std::string& key);

// Tasks that any model ran, in the order in which they are declared.
std::vector<std::string> TasksOf(const std::vector<ExperimentResult>& results);
// "8 texts, 1024 tokens, 3 times"
std::string Counted(const SpecFigures& figures);

inline constexpr const char* kNone = "–";  // in a cell without a value
// kNone for nothing.
std::string Number(std::optional<double> value, int digits = 2, const char* unit = "");
std::string Percent(std::optional<double> share, int digits = 1);

// Adds the tables and charts of one experiment, for all models that ran it.
void AddExperiment(const std::vector<ExperimentResult>& results, HtmlPage& page);

// ---- speed_tables.cc: what decoding took
// The paper's tables and bars, for each sampling.
void AddSpeed(const std::vector<ExperimentResult>& results, HtmlPage& page);
// Everything else that the records say about speed.
void AddSpeedDetails(const std::vector<ExperimentResult>& results, HtmlPage& page);

// ---- distance_tables.cc: distances by depth, and what follows from them
// Charts of one checkpoint: results differ in the precision alone.
void AddDistancePlots(const std::vector<ExperimentResult>& results, HtmlPage& page);
// The power laws, per task and over all tasks. `depths`: with the depths that they make best.
void AddEnvelopes(const std::vector<ExperimentResult>& results, bool depths, HtmlPage& page);
// Theorem 1: how often decoding restarts, against twice the distance at the second depth.
void AddRestarts(const std::vector<ExperimentResult>& results, HtmlPage& page);

}  // namespace loopspec::experiments

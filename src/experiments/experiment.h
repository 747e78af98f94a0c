// Declared experiments: the paper's tables and figures as runs that anybody can repeat, with the
// paper's own figures beside. See experiments/README.md for the file format.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "sampling/params.h"

namespace loopspec::experiments {

// What is measured, and so how it is reported.
enum class ExperimentKind {
  kSpeedup,   // tokens per second against autoregressive decoding, and gamma
  kGate,      // how often the gate opens
  kRows,      // rows of each recurrent pass: mean, peak, histogram
  kSources,   // committed tokens by proposal
  kDistance,  // agreement and total variation distance by depth, with the envelope
  kDepths,    // depths by the closed form against the measured best
};

struct ExperimentModel {
  std::string name;        // as the report shows it
  std::string checkpoint;  // a folder, or a name in the Hugging Face cache
  int recurrence = 0;      // R
};

struct ExperimentTask {
  std::string name;  // a task of MakeTask
  std::optional<int> shots;
  bool chat = false;
  bool thinking = false;  // the template's enable_thinking
  int max_tokens = 0, max_length = 0;
  std::vector<std::string> stop;
  std::vector<std::string> models;  // the models that run it; all of them when empty
};

struct ExperimentSampling {
  std::string name;  // "greedy", "sampling"
  double temperature = 0, top_p = 1;
};

// Which branches advance in a step. Each of ours adds to the one before it; none changes the text.
enum class DecodeSchedule {
  kPaper,  // the paper's algorithm: every draft has a branch, every live branch a row of every step
  kRows,   // + rows by cost
  kGroups,  // + groups
  kChosen,  // + early children: what users get
};

// One decoding spec. No depths is autoregressive decoding.
struct ExperimentDecode {
  std::vector<int> depths = {};
  LaterProposal later = LaterProposal::kGatedResidual;
  int recurrence = 0;   // only for models of this depth
  bool lookup = false;  // n-gram speculation over autoregressive decoding; has no depths
  DecodeSchedule schedule = DecodeSchedule::kChosen;

  bool operator==(const ExperimentDecode&) const = default;
};

// "ar", "lookup", "loopspec:2,8", "loopspec:2,8/residual", "loopspec:2,8/paper": different for
// different specs, and as commands name them.
std::string SpecName(const ExperimentDecode& decode);
// "the paper's", "+ rows by cost", "+ groups", "+ early children"
std::string NameOf(DecodeSchedule schedule);

// Figures that the paper gives for one cell: "speedup", "gamma", "gate_opening", ...
struct PaperFigure {
  std::string model, task, sampling;
  std::optional<ExperimentDecode> decode;
  std::map<std::string, double> values;
};

struct Experiment {
  std::string name, title, source;
  std::string meaning;  // what the figures say to a reader who has not read the paper
  ExperimentKind kind = ExperimentKind::kSpeedup;
  uint64_t seed = 1234;
  std::vector<ExperimentModel> models;
  std::vector<ExperimentTask> tasks;
  std::vector<ExperimentSampling> samplings;
  std::vector<ExperimentDecode> decodes;
  std::vector<int> distance_depths;  // kDistance: where the distance is measured; all when empty
  std::vector<PaperFigure> paper;
  std::string declaration;  // the JSON that it was read from

  const ExperimentModel* FindModel(const std::string& model) const;
  // Whether `task` is run with `model`.
  static bool Runs(const ExperimentTask& task, const ExperimentModel& model);
};

// `what` names the source in errors. Throws Error when a key is unknown or missing, a task is not
// one of ours, depths do not suit a model, budgets do not fit, or a figure of the paper belongs to
// nothing that is declared.
Experiment ParseExperiment(const Json& json, const std::string& what);
Experiment ReadExperiment(const std::filesystem::path& path);

// The *.json files of a folder by name. Throws Error when two have the same name.
std::map<std::string, Experiment> ReadExperiments(const std::filesystem::path& folder);

}  // namespace loopspec::experiments

// Runs declared experiments. Finished texts go to a file of records at once, so that a second start
// goes on where the first one was ended.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "calibrate/distance.h"
#include "engine/load/loaded_model.h"
#include "experiments/experiment.h"
#include "experiments/measurement.h"

namespace loopspec::experiments {

// Keys of the settings and records of an experiment: the clock that decoding is timed by, which
// records of earlier versions lack (theirs started at the first token), and the most memory that
// the run took.
inline constexpr const char* kPromptClock = "from the read prompt to the last token";
inline constexpr const char* kPeakMemory = "peak_memory";

// The model that is measured.
struct ExperimentSubject {
  std::string name;  // as --model gave it: a folder, or a name in the Hugging Face cache
  std::filesystem::path folder;
  std::shared_ptr<const LoadedModel> loaded;
  // A backend that reads out at `depths` and holds `positions`.
  std::function<std::unique_ptr<Backend>(std::span<const int> depths, int64_t positions)>
      make_backend;

  const ChatTemplate* chat_template() const {  // nullptr: it has none
    return loaded->has_chat_template() ? &loaded->chat_template() : nullptr;
  }
};

struct ExperimentOptions {
  std::filesystem::path output;      // folder of records; made where it is missing
  std::filesystem::path benchmarks;  // folder of benchmark files; may be empty
  std::optional<size_t> limit;       // texts of each task
  int max_tokens = 0;  // new tokens at most, where fewer than declared; 0: as declared
  int repeats = 3;     // of every text whose speed is measured
  std::string as;      // the declared model that it stands for; empty: by its name
  // For the record: of this program with its commit, today's date, and how it was started.
  std::string version, date, command;
};

struct ExperimentHooks {
  std::function<bool()> interrupted = [] { return false; };
  // Runs done of all runs of this experiment.
  std::function<void(int64_t done, int64_t total)> progress = [](int64_t, int64_t) {};
  // A task has been run to its end under one sampling.
  std::function<void(const std::string& group, const Records& records)> finished =
      [](const std::string&, const Records&) {};
};

struct ExperimentOutcome {
  std::filesystem::path file;  // of the records
  bool complete = false;       // false: interrupted
  int64_t compared = 0, equal = 0;
  std::string first_unequal;  // "task, way, item"
};

// A model as the report calls it: the declared one that it is, by --as, by checkpoint or by the
// name of its folder; else a new one of its own name, for which the paper has no figures. Throws
// Error when `as` is not declared or R differs.
ExperimentModel ModelOf(const Experiment& experiment, const ExperimentSubject& subject,
                        const std::string& as);

// The ways of decoding that are run for a model: the declared ones for its R, autoregressive
// decoding where it is needed to compare with, and prompt lookup as the baseline without training.
std::vector<ExperimentDecode> SpecsOf(const Experiment& experiment, int recurrence);

// The group of a task and a sampling in records.
std::string GroupOf(const std::string& task, const std::string& sampling);

// Runs what the output folder has not yet. `paper`: the experiment whose figures stand beside in
// the report when this one has none. Throws Error.
ExperimentOutcome RunExperiment(const Experiment& experiment, const Experiment* paper,
                                const ExperimentSubject& subject, const ExperimentOptions& options,
                                const ExperimentHooks& hooks);

// Where a task's files lie: the demo tasks beside the models of this repository, all others in the
// folder of benchmarks. Throws Error when that is needed and empty.
std::filesystem::path TaskFolder(const std::string& task, const std::filesystem::path& model,
                                 const std::filesystem::path& benchmarks);

// The tokens of a task's prompt, cut on the left to leave room for the answer.
std::vector<int32_t> TaskPromptTokens(const Task& task, const TaskItem& item,
                                      const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                                      const OrderedJson& template_arguments);

// Records of distances, kept in the same file as those of texts.
OrderedJson ToJson(const DistanceSums& sums, const std::string& group, const std::string& item);
bool IsDistance(const Json& record);
DistanceSums ParseDistance(const Json& record, const std::string& what);

}  // namespace loopspec::experiments

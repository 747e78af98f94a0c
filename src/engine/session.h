// A loaded model with all that serves it: what its folder holds, a backend, sampling defaults; and
// how a request becomes what the scheduler is asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "backends/backend.h"
#include "engine/grammars.h"
#include "engine/load/calibration.h"
#include "engine/load/generation_defaults.h"
#include "engine/load/loaded_model.h"
#include "engine/schedule/scheduler.h"
#include "fields/max_tokens.h"
#include "loopspec/loopspec.h"

namespace loopspec {

// What a session can be given instead of making it.
struct SessionParts {
  std::shared_ptr<Backend> backend;
  StepCost cost = {};  // of the backend's steps; default: rows are free
  SamplingParams sampling = {};
};

class Session {
 public:
  // Throws Error when the model cannot be loaded or run there.
  explicit Session(const EngineOptions& options);
  // The same with what is loaded already, for those who must see prompts before memory is taken.
  // What generation_config.json says is left out: requests name their sampling, or are greedy.
  Session(const EngineOptions& options, std::shared_ptr<const LoadedModel> loaded);
  // The same over a given backend, for tests and measurements.
  Session(const EngineOptions& options, std::shared_ptr<const LoadedModel> loaded,
          SessionParts parts);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const EngineOptions& options() const { return options_; }
  const LoadedModel& loaded() const { return *loaded_; }
  const std::shared_ptr<const LoadedModel>& shared_loaded() const { return loaded_; }
  const ModelSpec& spec() const { return loaded_->spec(); }
  Backend& backend() { return *backend_; }
  const Backend& backend() const { return *backend_; }
  const GenerationDefaults& defaults() const { return defaults_; }
  // Sets of proposal depths that requests may choose from; the first is the default, unless a
  // calibration found another one best for sampled text.
  const std::vector<std::vector<int>>& depths() const { return depths_; }
  // Positions that one text can have: the model's context, or less where memory holds less.
  int64_t longest() const;
  ModelFacts Facts() const;

  // The grammars of requests, for any number of threads at once.
  Grammars& grammars() const { return *grammars_; }

  // What the scheduler is asked for. Throws Error naming what is wrong with the request. Any number
  // of threads may do this at once.
  ResolvedRequest Resolve(const Request& request) const;

  // For a scheduler over the backend, which must be idle: the costs of its steps are measured where
  // they are not known yet.
  SchedulerOptions scheduler_options();

 private:
  std::vector<int> ChooseDepths(const Request& request, bool greedy) const;

  const EngineOptions options_;
  const std::shared_ptr<const LoadedModel> loaded_;
  const std::unique_ptr<Grammars> grammars_ = std::make_unique<Grammars>(loaded_);
  std::vector<std::vector<int>> depths_;
  size_t sampled_default_ = 0;  // of depths_
  Calibration calibration_;     // empty where there is none
  GenerationDefaults defaults_;
  std::shared_ptr<Backend> backend_;
  std::optional<StepCost> cost_;  // none: to be measured
};

}  // namespace loopspec

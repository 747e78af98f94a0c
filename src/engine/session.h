// A loaded model with all that serves it: what its folder holds, a backend, sampling defaults; and
// how a request becomes what the scheduler is asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backends/backend.h"
#include "engine/load/calibration.h"
#include "engine/load/generation_defaults.h"
#include "engine/load/loaded_model.h"
#include "engine/schedule/scheduler.h"
#include "loopspec/loopspec.h"

namespace loopspec {

// Tokens of an answer whose length is not given, where there is room.
inline constexpr int kDefaultTokens = 256;

class Session {
 public:
  // Throws Error when the model cannot be loaded or run there.
  explicit Session(const EngineOptions& options);
  // The same with what is loaded already, for who must see prompts before memory is taken. What
  // generation_config.json says is left aside: requests name their sampling, or are greedy.
  Session(const EngineOptions& options, std::shared_ptr<const LoadedModel> loaded);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const LoadedModel& loaded() const { return *loaded_; }
  const ModelSpec& spec() const { return loaded_->spec(); }
  Backend& backend() { return *backend_; }
  const GenerationDefaults& defaults() const { return defaults_; }
  // Sets of proposal depths that requests may choose from; the first is the default.
  const std::vector<std::vector<int>>& depths() const { return depths_; }
  // Positions that one text can have: the model's context, or less where memory holds less.
  int64_t longest() const;

  // What the scheduler is asked for. Throws Error naming what is wrong with the request. Any number
  // of threads may prepare at once.
  Submission Prepare(const Request& request) const;

  // Tokens per R recurrences of a choice that was decoded with these depths, the paper's measure.
  double GammaOf(const ChoiceResult& result, const std::vector<int>& depths) const;

  // For a scheduler over the backend, which must be idle: the costs of its steps are measured where
  // they are not known yet.
  SchedulerOptions scheduler_options();

 private:
  std::vector<int> ChooseDepths(const Request& request) const;

  const EngineOptions options_;
  const std::shared_ptr<const LoadedModel> loaded_;
  std::vector<std::vector<int>> depths_;
  Calibration calibration_;  // empty where there is none
  GenerationDefaults defaults_;
  std::unique_ptr<Backend> backend_;
};

}  // namespace loopspec

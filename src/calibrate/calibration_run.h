// A calibration from prompts to choice: texts are written, every depth is read out, every set of
// depths is predicted, the best few are timed, and the timings decide.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "calibrate/calibration_report.h"
#include "engine/load/calibration.h"
#include "engine/load/loaded_model.h"

namespace loopspec {

struct CalibrationPrompt {
  std::vector<int32_t> tokens;
  std::string where;  // "prompts.txt, line 3"
};

struct CalibrationOptions {
  SamplingParams sampling;   // of the sampled view; its temperature is above 0
  int positions = 4096;      // looked at, prompts and answers together
  int prompt_positions = 0;  // of each prompt only its last ones; 0: all
  int max_tokens = 128;      // of each text
  int proposals = 3;         // depths of a set at most
  int measure = 6;           // sets of depths that are timed
  int measure_prompts = 4, measure_tokens = 0, repeat = 3;
  uint64_t seed = 0;
  std::vector<int32_t> stop_tokens;
  std::vector<int> greedy_depths, sampled_depths;  // that the texts are written with
  int threads = 0;                                 // for predictions
};

struct CalibrationHooks {
  std::function<bool()> interrupted = [] { return false; };
  // "measuring", 3, 18, "runs"
  std::function<void(const char* what, int64_t done, int64_t total, const char* unit)> progress =
      [](const char*, int64_t, int64_t, const char*) {};
};

// Positions of a prompt that are looked at.
int64_t LookedAt(const CalibrationOptions& options, const CalibrationPrompt& prompt);

// Throws Error when a prompt has no tokens, unknown ones, or too many for the model.
void CheckPrompt(const CalibrationOptions& options, const CalibrationPrompt& prompt,
                 const ModelSpec& spec);

// Throws Error where R or the sampling leaves nothing to calibrate. `name`: of the model.
void CheckCalibration(const CalibrationOptions& options, const ModelSpec& spec,
                      const std::string& name);

// What both views need: has `options` write texts with the depths that are chosen so far, and makes
// a backend that reads out every depth and holds the longest text.
std::shared_ptr<Backend> PrepareCalibration(const Model& model, const ChosenDepths& chosen,
                                            const std::vector<CalibrationPrompt>& prompts,
                                            EngineOptions engine, CalibrationOptions& options);

// One view. `report` says on what and when; the rest of it is filled in. The backend reads out
// every depth and holds the longest text. Throws Error when nothing can be calibrated by, or when
// interrupted: there is nothing to show for half a calibration.
void RunCalibration(const CalibrationOptions& options,
                    const std::shared_ptr<const LoadedModel>& loaded,
                    const std::vector<CalibrationPrompt>& prompts,
                    const std::shared_ptr<Backend>& backend, const CalibrationHooks& hooks,
                    CalibrationReport& report);

// Whether more timings could still change the choice for the worse: false while some other set may
// be faster than `chosen` by more than 6 %, at two standard errors of the repeats. Repeats are
// compared in pairs, since all sets ran in turn in each of them.
bool ChoiceIsSettled(const std::vector<MeasuredSpeed>& measured, const std::vector<int>& chosen);

// The set of depths to use: where sets were timed the fastest of them, autoregressive decoding
// included, else the fastest predicted; among those within 3 % of it the one with the fewest
// proposals, which asks least of what was assumed.
std::vector<int> ChooseFastest(const CalibrationReport& report);

}  // namespace loopspec

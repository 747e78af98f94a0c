// What a model's depths say of each other over some texts, and what speed that promises here: the
// measurement behind `loopspec calibrate`.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "base/thread_pool.h"
#include "calibrate/depth_rates.h"
#include "calibrate/envelope.h"
#include "calibrate/simulate.h"

namespace loopspec {

// A prompt and the text that the model wrote after it.
struct CalibrationText {
  std::vector<int32_t> tokens;
  int64_t prompt = 0;  // tokens of it that are the prompt
  int64_t first = 0;   // positions before it are read, but not looked at
};

// One kind of position: within prompts, or where the next token was the model's own.
struct DepthCurve {
  int64_t positions = 0;
  std::vector<double> agreement;  // by depth from 1 to R: share whose choice is the target's
  std::vector<double> distance;   // by depth: mean total variation distance to the target
};

struct DepthProfile {
  int recurrence = 0;
  DepthCurve prompts, generated;
  int64_t cascade_positions = 0;            // positions that `sampled` was worked out from
  std::vector<DepthRates> greedy, sampled;  // over generated positions, in the same order
  double context = 0;                       // mean position of the generated tokens
  double guess_offered = 0;  // early children: how often the text before offers a guess ...
  double guess_right = 0;    // ... and how often that is the token

  // Depths before R whose mean distance over generated positions is 0: they are in no power law.
  int zeros() const;
};

// Counts as it goes, so that progress can be shown between texts and within them.
class DepthProfiler {
 public:
  // The backend reads out every depth. `sampling` shapes the distributions (temperature above 0);
  // `sets` are the proposal depths to look at, of at most three each.
  DepthProfiler(Backend& backend, const SamplingParams& sampling,
                const std::vector<std::vector<int>>& sets);

  // Teacher-forced over one text. `progress` is called with the positions done so far of it.
  // Throws Error when the logits are no numbers.
  void Add(const CalibrationText& text, const std::function<void(int64_t done)>& progress = {});
  DepthProfile Finish() const;

 private:
  void AddPosition(const PositionReadouts& readouts, bool generated);
  void AddGuesses(const CalibrationText& text);

  Backend& backend_;
  ThreadPool team_;
  const SamplingParams sampling_;
  DepthProfile sums_;
  double context_sum_ = 0, guesses_ = 0, right_ = 0, asked_ = 0;
  int64_t seen_ = 0;
};

// Sampling view or greedy view.
enum class RatesView { kGreedy, kSampled };

struct PredictionRequest {
  ReadBytes bytes;
  StepCost cost;
  double bandwidth = 0;  // of reading; 0: unknown
  int64_t context = 512;
  int tokens = 3000;    // of each simulation
  int text_tokens = 0;  // of one text; 0: all tokens are one
  double guess_offered = 0, guess_right = 0;
};

// What one set of depths promises. No depths: autoregressive decoding.
struct Prediction {
  std::vector<int> depths;
  DepthRates rates;
  SimulationResult simulation;
  int max_rows = 0;  // 0: by cost, row by row
  double tokens_per_second = 0;
  double speedup = 1;      // over autoregressive decoding
  double bound_share = 0;  // of the speed at which memory alone would allow; 0: unknown
};

// What decoding assumes of drafts that fare so.
AcceptancePrior PriorOf(const DepthRates& rates);

Prediction PredictAutoregressive(int recurrence, const PredictionRequest& request);
// Rows are chosen by cost, and a few fixed budgets are tried where `budgets` says so.
Prediction PredictSpeed(const DepthRates& rates, int recurrence, const PredictionRequest& request,
                        const Prediction& autoregressive, bool budgets = false);
// The same for each of a list, by all members of a team. `progress` is called now and then with the
// number done; false ends it, and what is left stays empty.
std::vector<Prediction> PredictSpeeds(std::span<const DepthRates> list, int recurrence,
                                      const PredictionRequest& request,
                                      const Prediction& autoregressive, bool budgets,
                                      ThreadPool& team,
                                      const std::function<bool(size_t done)>& progress = {});

// The envelope of the distances over generated positions, which decoding meets; nothing with `why`
// where no power law bounds them.
std::optional<PowerLawEnvelope> FitProfile(const DepthProfile& profile, std::string* why);

}  // namespace loopspec

// All that a calibration found, as the file that decoding reads and people may.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "base/json_fwd.h"
#include "calibrate/calibrate.h"
#include "calibrate/exit_gate.h"
#include "engine/load/step_cost.h"
#include "model/model.h"

namespace loopspec {

// A configuration that was timed. No depths: autoregressive decoding.
struct MeasuredSpeed {
  std::vector<int> depths;
  std::vector<double> rates;  // tokens per second, one for each repeat
  double floor_share = 0;     // of the speed at which memory alone would allow; 0: unknown

  double median() const;
};

struct CalibrationReport {
  std::string model;         // as the user named it
  std::string device, chip;  // "cpu", its name
  std::string section;       // of the file, for device class and plan of keys: "cpu"
  std::string compute;       // "f32", "bf16"
  std::string kv_type;       // "bf16", "int8", "loops:int8*8,last@64"
  int threads = 0;           // of a CPU; 0 on a GPU
  std::string date, version, command;
  std::string prompts;  // where they came from: a file's name, "made prompts of 64 tokens"
  int texts = 0;        // that were written
  DepthProfile profile;
  SamplingParams sampling;              // of the sampled view
  RatesView view = RatesView::kGreedy;  // which of the views the predictions are for
  std::optional<PowerLawEnvelope> envelope;
  std::string no_envelope;  // why there is none
  StepCost step_cost;       // as measured by itself; that of `request` is as texts met it
  PredictionRequest request;
  Prediction autoregressive;
  std::vector<Prediction> predictions;  // the fastest first
  std::vector<int> chosen_depths;       // none: autoregressive decoding
  bool triples_thinned = false;
  std::vector<MeasuredSpeed> measured;  // the first is autoregressive; may be empty

  std::optional<ExitReport> exit_gate;  // where the model has one and the device shows states

  // How much longer the same work took at one time than at another: on a busy machine timings say
  // little. 1: it never did.
  double spread = 1;
  // The repeats tell the chosen depths from all others, or show that they are as good.
  bool settled = true;
  // Noise could have changed the choice. Without timings the spread of the costs says so.
  bool busy() const { return measured.empty() ? spread > kSteadySpread : !settled; }

  // On what it is measured.
  void Describe(const Backend& backend);

  const Prediction& chosen() const { return *Find(chosen_depths); }
  const Prediction* Find(const std::vector<int>& depths) const;
  const MeasuredSpeed* FindMeasured(const std::vector<int>& depths) const;
};

// How far the repeats of one measurement lie apart at most: the fastest over the slowest.
double LargestSpread(const std::vector<MeasuredSpeed>& measured);

// Predicted against measured speed, over the sets of depths that were measured.
struct PredictionQuality {
  int compared = 0;
  std::optional<double> rank_correlation;
  // The measured speed of the chosen set, over that of the fastest measured one; 0: not measured.
  double chosen_over_best = 0;
  std::vector<int> best;  // the fastest measured
};
PredictionQuality Judge(const CalibrationReport& report);

// (2,8), or "autoregressive".
std::string DepthsText(const std::vector<int>& depths);

// Theorem 1 over every pair of depths, sampled view: with the gate decoding restarts with a
// probability of at most twice the mean distance at the second depth.
struct RestartBound {
  std::vector<int> depths;
  double restarts = 0, bound = 0;  // shares of positions
};
std::vector<RestartBound> RestartBounds(const DepthProfile& profile);

// The file's content, from one report or from those of both views. What `old` says of devices of
// other classes and of the view that was not calibrated is kept, where it is a calibration of the
// same model.
OrderedJson CalibrationJson(std::span<const CalibrationReport> reports, const Model& model,
                            const std::string& old);

}  // namespace loopspec

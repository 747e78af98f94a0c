// All that a calibration found, as the file that decoding reads and people may.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "measure/calibrate.h"
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
  std::string device_class;  // "cpu", "gpu"
  std::string compute;       // "f32", "bf16"
  DepthProfile profile;
  SamplingParams sampling;              // of the sampled view
  RatesView view = RatesView::kGreedy;  // which of the views the predictions are for
  std::optional<PowerLawEnvelope> envelope;
  std::string no_envelope;  // why there is none
  PredictionRequest request;
  Prediction autoregressive;
  std::vector<Prediction> predictions;  // the fastest first
  bool triples_thinned = false;
  std::vector<MeasuredSpeed> measured;  // the first is autoregressive; may be empty

  const Prediction& chosen() const { return predictions.front(); }
  const Prediction* Find(const std::vector<int>& depths) const;
  const MeasuredSpeed* FindMeasured(const std::vector<int>& depths) const;
};

// Predicted against measured speed, over the sets of depths that were measured. `proposals`: only
// those of so many depths; 0: all.
struct PredictionQuality {
  int compared = 0;
  std::optional<double> rank_correlation;
  // The measured speed of the fastest predicted set, over that of the fastest measured one.
  double chosen_over_best = 0;
  std::vector<int> best;  // the fastest measured
};
PredictionQuality Judge(const CalibrationReport& report, int proposals = 0);

// (2,8), or "autoregressive".
std::string DepthsText(const std::vector<int>& depths);

// The file's content. What `old` says of devices of other classes is kept, where it is a
// calibration of the same model.
OrderedJson CalibrationJson(const CalibrationReport& report, const Model& model,
                            const std::string& old);

}  // namespace loopspec

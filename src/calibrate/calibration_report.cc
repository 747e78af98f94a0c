#include "calibrate/calibration_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "engine/load/calibration.h"

namespace loopspec {
namespace {

OrderedJson CurveJson(const DepthCurve& curve) {
  return {{"positions", curve.positions},
          {"agreement", curve.agreement},
          {"total_variation", curve.distance}};
}

OrderedJson RatesJson(const std::vector<DepthRates>& list) {
  OrderedJson json = OrderedJson::array();
  for (const DepthRates& rates : list)
    json.push_back({{"depths", rates.depths}, {"accepted", rates.accepted}, {"gate", rates.gate}});
  return json;
}

OrderedJson EnvelopeJson(const CalibrationReport& report) {
  if (!report.envelope) return {{"none", report.no_envelope}};
  const DepthChoice choice = ChooseDepths(*report.envelope, report.profile.recurrence);
  return {{"alpha", report.envelope->alpha},
          {"beta", report.envelope->beta},
          {"worst_ratio", report.envelope->worst_ratio},
          {"closed_form", {choice.depths.d1, choice.depths.d2}},
          {"condition_holds", choice.condition_holds},
          {"smallest_recurrence", choice.smallest_recurrence}};
}

OrderedJson PredictionJson(const Prediction& p) {
  return {{"depths", p.depths},          {"tokens_per_second", p.tokens_per_second},
          {"speedup", p.speedup},        {"tokens_per_pass", p.simulation.tokens_per_pass},
          {"rows", p.simulation.rows},   {"row_budget", p.row_budget},
          {"group", p.simulation.group}, {"bound_share", p.bound_share}};
}

OrderedJson DeviceJson(const CalibrationReport& report) {
  OrderedJson predictions = OrderedJson::array(), measured = OrderedJson::array();
  for (const Prediction& p : report.predictions) predictions.push_back(PredictionJson(p));
  for (const MeasuredSpeed& m : report.measured)
    measured.push_back({{"depths", m.depths},
                        {"tokens_per_second", m.median()},
                        {"runs", m.rates},
                        {"bound_share", m.floor_share}});
  const PredictionQuality quality = Judge(report);
  OrderedJson json = {{"depths", report.chosen().depths},
                      {"device", report.device},
                      {"chip", report.chip},
                      {"compute", report.compute},
                      {"view", report.view == RatesView::kGreedy ? "greedy" : "sampling"},
                      {"context", report.request.context},
                      {"bandwidth", report.request.bandwidth},
                      {"spread", report.spread},
                      {"autoregressive", PredictionJson(report.autoregressive)},
                      {"predicted", predictions},
                      {"measured", measured}};
  if (quality.rank_correlation) json["rank_correlation"] = *quality.rank_correlation;
  return json;
}

}  // namespace

double MeasuredSpeed::median() const {
  std::vector<double> sorted = rates;
  std::sort(sorted.begin(), sorted.end());
  const size_t n = sorted.size();
  if (n == 0) return 0;
  return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

const Prediction* CalibrationReport::Find(const std::vector<int>& depths) const {
  if (depths.empty()) return &autoregressive;
  const auto it = std::find_if(predictions.begin(), predictions.end(),
                               [&](const Prediction& p) { return p.depths == depths; });
  return it == predictions.end() ? nullptr : &*it;
}

const MeasuredSpeed* CalibrationReport::FindMeasured(const std::vector<int>& depths) const {
  const auto it = std::find_if(measured.begin(), measured.end(),
                               [&](const MeasuredSpeed& m) { return m.depths == depths; });
  return it == measured.end() ? nullptr : &*it;
}

double LargestSpread(const std::vector<MeasuredSpeed>& measured) {
  double spread = 1;
  for (const MeasuredSpeed& m : measured) {
    if (m.rates.empty()) continue;
    const auto [slowest, fastest] = std::minmax_element(m.rates.begin(), m.rates.end());
    spread = std::max(spread, *fastest / *slowest);
  }
  return spread;
}

PredictionQuality Judge(const CalibrationReport& report) {
  PredictionQuality quality;
  std::vector<double> predicted, measured;
  double best = 0, chosen = 0;
  for (const MeasuredSpeed& m : report.measured) {
    if (m.depths.empty() || m.rates.empty()) continue;
    const Prediction* p = report.Find(m.depths);
    if (p == nullptr) continue;
    predicted.push_back(p->tokens_per_second);
    measured.push_back(m.median());
    if (m.median() > best) best = m.median(), quality.best = m.depths;
    if (m.depths == report.chosen().depths) chosen = m.median();
  }
  quality.compared = static_cast<int>(predicted.size());
  quality.rank_correlation = RankCorrelation(predicted, measured);
  quality.chosen_over_best = best > 0 ? chosen / best : 0;
  return quality;
}

std::string DepthsText(const std::vector<int>& depths) {
  return depths.empty() ? "autoregressive" : fmt::format("({})", fmt::join(depths, ","));
}

OrderedJson CalibrationJson(const CalibrationReport& report, const Model& model,
                            const std::string& old) {
  OrderedJson devices = OrderedJson::object();
  if (!old.empty()) {
    try {
      ParseCalibration(old, "the old calibration", model);
      devices = ParseOrderedJson(old, "the old calibration").at("devices");
    } catch (const Error&) {
      // Of another model, or damaged: nothing of it is kept.
    }
  }
  devices[report.device_class] = DeviceJson(report);
  const DepthProfile& profile = report.profile;
  return {{"loopspec_calibration", kCalibrationVersion},
          {"model", CalibrationModel(model)},
          {"prompts", CurveJson(profile.prompts)},
          {"generated", CurveJson(profile.generated)},
          {"sampling",
           {{"temperature", report.sampling.temperature},
            {"top_p", report.sampling.top_p},
            {"top_k", report.sampling.top_k},
            {"min_p", report.sampling.min_p}}},
          {"guesses", {{"offered", profile.guess_offered}, {"right", profile.guess_right}}},
          {"envelope", EnvelopeJson(report)},
          {"greedy", RatesJson(profile.greedy)},
          {"sampled_positions", profile.cascade_positions},
          {"sampled", RatesJson(profile.sampled)},
          {"devices", devices}};
}

}  // namespace loopspec

#include "calibrate/calibration_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "engine/load/calibration.h"
#include "fields/sampling_fields.h"

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
          {"zeros_left_out", report.profile.zeros()},
          {"closed_form", {choice.depths.d1, choice.depths.d2}},
          {"condition_holds", choice.condition_holds},
          {"smallest_recurrence", choice.smallest_recurrence}};
}

OrderedJson PredictionJson(const Prediction& p) {
  return {{"depths", p.depths},          {"tokens_per_second", p.tokens_per_second},
          {"speedup", p.speedup},        {"tokens_per_pass", p.simulation.tokens_per_pass},
          {"rows", p.simulation.rows},   {"row_budget", p.max_rows},
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
  OrderedJson json = {{"depths", report.chosen_depths},
                      {"device", report.device},
                      {"chip", report.chip},
                      {"threads", report.threads},
                      {"compute", report.compute},
                      {"kv_type", report.kv_type},
                      {"date", report.date},
                      {"version", report.version},
                      {"prompts", report.prompts},
                      {"texts", report.texts},
                      {"positions", report.profile.generated.positions},
                      {"context", report.request.context},
                      {"clock", "from the read prompt to the last token"},
                      {"envelope", EnvelopeJson(report)},
                      {"bandwidth", report.request.bandwidth},
                      {"spread", report.spread},
                      {"settled", report.settled},
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

void CalibrationReport::Describe(const Backend& backend) {
  const bool cpu = backend.device() == "cpu";
  device = backend.device();
  chip = backend.chip();
  compute = backend.options().compute == ComputeMode::kF32 ? "f32" : "bf16";
  kv_type = NameOfKvType(backend.options());
  section = SectionOf(cpu ? DeviceClass::kCpu : DeviceClass::kGpu, PlanIn(kv_type));
  threads = cpu ? backend.options().threads : 0;
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
    if (m.depths == report.chosen_depths) chosen = m.median();
  }
  quality.compared = static_cast<int>(predicted.size());
  // Of two sets the order is right or wrong, and says nothing more.
  if (quality.compared > 2) quality.rank_correlation = RankCorrelation(predicted, measured);
  quality.chosen_over_best = best > 0 ? chosen / best : 0;
  return quality;
}

std::string DepthsText(const std::vector<int>& depths) {
  return depths.empty() ? "autoregressive" : fmt::format("({})", fmt::join(depths, ","));
}

std::vector<RestartBound> RestartBounds(const DepthProfile& profile) {
  std::vector<RestartBound> bounds;
  for (const DepthRates& rates : profile.sampled) {
    if (rates.depths.size() != 2) continue;
    const double distance = profile.generated.distance[static_cast<size_t>(rates.depths[1]) - 1];
    bounds.push_back(
        {rates.depths, std::max(0.0, 1 - rates.accepted[0] - rates.accepted[1]), 2 * distance});
  }
  return bounds;
}

OrderedJson CalibrationJson(std::span<const CalibrationReport> reports, const Model& model,
                            const std::string& old) {
  OrderedJson kept = OrderedJson::object();
  if (!old.empty()) {
    try {
      ParseCalibration(old, "the old calibration", model);
      kept = ParseOrderedJson(old, "the old calibration");
    } catch (const Error&) {
      // Of another model, of an earlier version, or damaged: nothing of it is kept.
    }
  }
  OrderedJson devices = kept.contains("devices") ? kept["devices"] : OrderedJson::object();
  for (const CalibrationReport& report : reports)
    devices[report.section][ViewName(report.view == RatesView::kGreedy)] = DeviceJson(report);
  // Rates of a view come from its own texts, where these were written.
  const auto of_view = [&](RatesView view) -> const CalibrationReport* {
    for (const CalibrationReport& report : reports) {
      if (report.view == view) return &report;
    }
    return nullptr;
  };
  const auto rates = [&](RatesView view, const char* key) -> OrderedJson {
    const CalibrationReport* own = of_view(view);
    if (own == nullptr && kept.contains(key)) return kept[key];
    const DepthProfile& profile = (own != nullptr ? *own : reports[0]).profile;
    return RatesJson(view == RatesView::kGreedy ? profile.greedy : profile.sampled);
  };
  const CalibrationReport& first = reports[0];
  const DepthProfile& profile = first.profile;
  OrderedJson json = {
      {"loopspec_calibration", kCalibrationVersion},
      {"model", CalibrationModel(model)},
      {"prompts", CurveJson(profile.prompts)},
      {"generated", CurveJson(profile.generated)},
      {"sampling",
       ToJson(first.sampling,
              [](const SamplingField& field) { return field.part != SamplingPart::kPenalty; })},
      {"guesses", {{"offered", profile.guess_offered}, {"right", profile.guess_right}}},
      {"envelope", EnvelopeJson(first)},
      {"greedy", rates(RatesView::kGreedy, "greedy")},
      {"sampled_positions", profile.cascade_positions},
      {"sampled", rates(RatesView::kSampled, "sampled")},
      {"devices", devices}};
  if (first.exit_gate) json["exit_gate"] = first.exit_gate->ToJson();
  return json;
}

}  // namespace loopspec

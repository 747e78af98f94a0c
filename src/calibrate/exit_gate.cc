#include "calibrate/exit_gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/error.h"
#include "base/json.h"
#include "kv/ledger.h"
#include "sampling/filters.h"

namespace loopspec {

std::optional<ExitGate> ExitGate::Of(const Model& model) {
  const auto& tensors = model.checkpoint.tensors();
  const auto weight = tensors.find("model.early_exit_gate.weight");
  if (model.spec.family != "ouro" || weight == tensors.end()) return std::nullopt;
  const DType type = weight->second.dtype;
  if (type != DType::kF32 && type != DType::kBF16 && type != DType::kF16)
    return std::nullopt;  // in few bits, which are not put together for it
  const std::vector<int64_t> shape = {1, model.spec.hidden};
  if (weight->second.shape != shape) {
    Fail("{}: tensor model.early_exit_gate.weight has shape {}, expected {}",
         model.checkpoint.path().string(), ShapeText(weight->second.shape), ShapeText(shape));
  }
  ExitGate gate;
  for (int64_t i = 0; i < weight->second.elements(); ++i)
    gate.weight.push_back(LoadElement(weight->second.data, weight->second.dtype, i));
  const auto bias = tensors.find("model.early_exit_gate.bias");
  if (bias != tensors.end() && bias->second.elements() == 1)
    gate.bias = LoadElement(bias->second.data, bias->second.dtype, 0);
  return gate;
}

double ExitGate::Lambda(std::span<const float> state) const {
  LOOPSPEC_CHECK(state.size() == weight.size());
  double sum = static_cast<double>(bias);
  for (size_t i = 0; i < state.size(); ++i)
    sum += static_cast<double>(weight[i]) * static_cast<double>(state[i]);
  return 1.0 / (1.0 + std::exp(-sum));
}

std::vector<double> ExitDistribution(std::span<const double> lambdas) {
  std::vector<double> p;
  double left = 1.0;
  for (size_t r = 0; r < lambdas.size(); ++r) {
    p.push_back(r + 1 == lambdas.size() ? left : left * lambdas[r]);
    left -= p.back();
  }
  return p;
}

size_t ExitAt(std::span<const double> distribution, double threshold) {
  double sum = 0;
  for (size_t r = 0; r + 1 < distribution.size(); ++r) {
    sum += distribution[r];
    if (sum >= threshold) return r;
  }
  return distribution.size() - 1;
}

ExitReport::ExitReport(std::vector<int> depths)
    : depths_(std::move(depths)), mass_(depths_.size(), 0.0) {
  for (const double value : {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99})
    thresholds_.push_back({value});
}

void ExitReport::Add(std::span<const double> lambdas, std::span<const int32_t> choices) {
  LOOPSPEC_CHECK(lambdas.size() == depths_.size() && choices.size() == depths_.size());
  const std::vector<double> p = ExitDistribution(lambdas);
  for (size_t r = 0; r < p.size(); ++r) mass_[r] += p[r];
  for (Threshold& threshold : thresholds_) {
    const size_t at = ExitAt(p, threshold.value);
    threshold.depth += depths_[at];
    threshold.agreed += choices[at] == choices.back() ? 1 : 0;
  }
  ++positions_;
}

OrderedJson ExitReport::ToJson() const {
  const double n = std::max(positions_, 1);
  OrderedJson json = {{"positions", positions_}, {"depths", depths_}};
  json["probability"] = OrderedJson::array();
  for (const double mass : mass_) json["probability"].push_back(mass / n);
  json["thresholds"] = OrderedJson::array();
  for (const Threshold& threshold : thresholds_) {
    json["thresholds"].push_back({{"threshold", threshold.value},
                                  {"mean_depth", threshold.depth / n},
                                  {"agreement", threshold.agreed / n}});
  }
  return json;
}

std::string ExitReport::ToText() const {
  const double n = std::max(positions_, 1);
  std::string text =
      fmt::format("exit gate over {} positions: probability of each depth", positions_);
  for (size_t r = 0; r < depths_.size(); ++r)
    text += fmt::format("{} {} {:.1f} %", r == 0 ? ":" : ",", depths_[r], 100 * mass_[r] / n);
  text += "\n  threshold  mean depth  choices that change\n";
  for (const Threshold& threshold : thresholds_) {
    text += fmt::format("  {:>9.2f}  {:>10.2f}  {:>17.1f} %\n", threshold.value,
                        threshold.depth / n, 100 * (1 - threshold.agreed / n));
  }
  return text + "  (nothing here follows the gate: leaving early writes another text)\n";
}

void ReadExitGate(Backend& backend, const ExitGate& gate, std::span<const int32_t> tokens,
                  size_t first, ExitReport& report) {
  const size_t depths = backend.options().readout_depths.size();
  std::vector<double> lambdas((tokens.size() - first) * depths);
  std::vector<int32_t> choices(lambdas.size());
  const auto place = [&](int32_t position, int32_t readout) {
    return (static_cast<size_t>(position) - first) * depths + static_cast<size_t>(readout);
  };
  KvLedger ledger(backend.pages(), 1, backend.window_pages());
  const SequencePages pages(ledger, static_cast<int64_t>(tokens.size()));
  const SequencePlan sequence = PlanOf(pages);
  if (first > 0) backend.Prefill({sequence, 0, tokens.first(first)});
  backend.ScoreStates(
      {sequence, static_cast<int32_t>(first), tokens.subspan(first)},
      [&](int32_t position, int32_t readout, std::span<const float> logits) {
        choices[place(position, readout)] = ArgMax(logits);
      },
      [&](int32_t position, int32_t readout, std::span<const float> state) {
        lambdas[place(position, readout)] = gate.Lambda(state);
      });
  for (size_t i = 0; i < lambdas.size(); i += depths)
    report.Add(std::span(lambdas).subspan(i, depths), std::span(choices).subspan(i, depths));
}

}  // namespace loopspec

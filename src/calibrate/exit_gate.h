// Ouro's exit gate: how likely the model thinks each recurrence to be deep enough. Decoding here
// runs at fixed depth, since leaving early writes another text; this says what the gate says, and
// what would be lost by following it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "base/json_fwd.h"
#include "model/model.h"

namespace loopspec {

struct ExitGate {
  std::vector<float> weight;  // [hidden]
  float bias = 0;

  // Nothing where the checkpoint has no gate; Error where it has one of another shape.
  static std::optional<ExitGate> Of(const Model& model);
  // lambda: the sigmoid of the gate on a state.
  double Lambda(std::span<const float> state) const;
};

// p_r = lambda_r times the product of (1 - lambda) before it; the last recurrence takes the rest.
std::vector<double> ExitDistribution(std::span<const double> lambdas);
// Index of the first recurrence at which the cumulative p reaches `threshold`, else the last.
size_t ExitAt(std::span<const double> distribution, double threshold);

// What the positions of a text say about it.
class ExitReport {
 public:
  explicit ExitReport(std::vector<int> depths);

  // One position: the gate's lambdas by depth, and what its readouts would have chosen.
  void Add(std::span<const double> lambdas, std::span<const int32_t> choices);

  int positions() const { return positions_; }
  OrderedJson ToJson() const;
  std::string ToText() const;

 private:
  struct Threshold {
    double value;
    double depth = 0;  // sum of exit depths
    int agreed = 0;    // choices that are the last depth's
  };
  std::vector<int> depths_;
  std::vector<double> mass_;  // sum of p, by depth
  std::vector<Threshold> thresholds_;
  int positions_ = 0;
};

// What the gate says at positions [first, ...) of a text that is read, at every readout depth of
// the backend. Throws Error where the backend hands out no states.
void ReadExitGate(Backend& backend, const ExitGate& gate, std::span<const int32_t> tokens,
                  size_t first, ExitReport& report);

}  // namespace loopspec

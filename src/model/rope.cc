// Frequencies of the rotary embedding, as transformers computes them (modeling_rope_utils.py), in
// double precision.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/model_spec.h"

namespace loopspec {
namespace {

// Short waves stay, long ones are divided by the factor, those between are blended.
double Llama3(const RopeSpec& rope, double f) {
  const double turns = rope.original_positions * f / (2.0 * std::numbers::pi);
  if (turns < rope.low_freq_factor) return f / rope.factor;
  if (turns > rope.high_freq_factor) return f;
  const double smooth =
      (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * f / rope.factor + smooth * f;
}

// The dimensions between which yarn goes from "keep" to "divide".
struct YarnRange {
  double low, high;
};

YarnRange FindYarnRange(const RopeSpec& rope, int head_dim) {
  // The dimension that makes this many turns in the original context.
  const auto dimension = [&](double turns) {
    return head_dim * std::log(rope.original_positions / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(rope.theta));
  };
  double low = dimension(rope.beta_fast), high = dimension(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1.0);
  return {low, low == high ? high + 0.001 : high};
}

}  // namespace

std::vector<double> ModelSpec::RopeFrequencies() const {
  std::vector<double> frequencies(static_cast<size_t>(head_dim / 2));
  const YarnRange yarn =
      rope.scaling == RopeScaling::kYarn ? FindYarnRange(rope, head_dim) : YarnRange{};
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const auto dimension = static_cast<double>(i);
    double f = std::pow(rope.theta, -2.0 * dimension / head_dim);
    switch (rope.scaling) {
      case RopeScaling::kNone:
        break;
      case RopeScaling::kLinear:
        f /= rope.factor;
        break;
      case RopeScaling::kLlama3:
        f = Llama3(rope, f);
        break;
      case RopeScaling::kYarn: {
        const double divided =
            std::clamp((dimension - yarn.low) / (yarn.high - yarn.low), 0.0, 1.0);
        f = divided * f / rope.factor + (1.0 - divided) * f;
        break;
      }
    }
    frequencies[i] = f;
  }
  return frequencies;
}

double ModelSpec::AttentionScale() const {
  return rope.attention_factor * rope.attention_factor / std::sqrt(static_cast<double>(head_dim));
}

}  // namespace loopspec

// What a synthetic twin consists of: its tensors, and how each is filled.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/json_fwd.h"

namespace loopspec {

enum class TwinFamily { kOuro, kNanbeige, kIfm, kIfmHuginn, kRavenLlama, kRavenOlmo, kHuginn };

// Size and kind of a released model.
struct TwinShape {
  const char* name;
  TwinFamily family;
  int prelude, core, coda, hidden, heads, kv_heads, head_dim, ff, vocab, recurrence, positions;
  double theta, eps;
  bool scaled_rope = false;  // llama3 scaling

  bool raven() const { return family >= TwinFamily::kRavenLlama; }  // in any layout
  bool olmo() const { return family == TwinFamily::kRavenOlmo; }
  bool huginn() const { return family == TwinFamily::kHuginn; }
  bool ifm() const { return family == TwinFamily::kIfm || injects(); }
  // IFM's state from a hash, with e injected into it; else it starts from e.
  bool injects() const { return family == TwinFamily::kIfmHuginn; }

  // Another width: heads keep their size, their number and the feed-forward shrink in proportion.
  // Throws Error unless whole heads come out.
  void SetWidth(int width);
};

const std::vector<TwinShape>& TwinShapes();

// A tensor to be written: `scale` times uniform noise of variance one, plus `diagonal` on the
// diagonal of each square block (an adapter has two), or a constant (norms).
struct TensorPlan {
  std::string name;
  std::vector<int64_t> shape;
  double scale = 0;
  double constant = 0;
  double diagonal[2] = {0, 0};
  bool has_shift = false;  // changes with the twin's shift

  int64_t elements() const {
    int64_t all = 1;
    for (const int64_t extent : shape) all *= extent;
    return all;
  }
  uint64_t bytes() const { return static_cast<uint64_t>(elements()) * 2; }
};

// The ways to fill one.
inline TensorPlan Matrix(std::string name, int64_t rows, int64_t columns, double deviation) {
  TensorPlan plan{std::move(name), {rows, columns}};
  plan.scale = deviation;
  return plan;
}
inline TensorPlan Constant(std::string name, int64_t size, double value, bool has_shift = false) {
  TensorPlan plan{std::move(name), {size}};
  plan.constant = value;
  plan.has_shift = has_shift;
  return plan;
}
inline TensorPlan Shifted(TensorPlan plan) {
  plan.has_shift = true;
  return plan;
}
// The deviation that leaves the size of what it multiplies as it is.
inline double Unit(int in) {
  return 1.0 / std::sqrt(in);
}

// Sizes of the sublayers of P and C beside a state of size one, and of the logits.
inline constexpr double kPreludeBranch = 0.5;
inline constexpr double kCodaBranch = 0.1;
// Raven's prelude, which all depths share, mixes the context in; its recurrence must not, or its
// own wandering would hide the shift.
inline constexpr double kCoreBranch = 0.02;
inline constexpr double kLogitDeviation = 3.0;

// IFM's tensors and config.json (synth_ifm.cc); `branch` and `keep` as the twin has them.
std::vector<TensorPlan> IfmTwinTensors(const TwinShape& shape, double branch, double keep);
OrderedJson IfmTwinConfig(const TwinShape& shape);

class Twin {
 public:
  // The shift (see SynthResult) for which the first drafts should agree that often, for small
  // shifts: the gap of the two largest of V normal logits is about 1 / sqrt(2 ln V) of their
  // deviation, and a small shift s flips them with probability near 0.56 s sqrt(2 ln V).
  static double GuessShift(const TwinShape& shape, double agreement);

  Twin(const TwinShape& shape, double shift);

  std::vector<TensorPlan> Tensors() const;
  OrderedJson Config() const;

 private:
  void RavenBlock(const std::string& at, double branch, std::vector<TensorPlan>& out) const;
  void OuroBlock(const std::string& at, std::vector<TensorPlan>& out) const;
  void RavenConfig(OrderedJson& config) const;
  void OuroConfig(OrderedJson& config) const;

  TwinShape s_;
  // Where the state starts from e: size of a sublayer's contribution, beside a state of size one.
  double branch_ = 0;
  double keep_ = 0;  // where it does not: how much of the state a recurrence keeps
};

}  // namespace loopspec

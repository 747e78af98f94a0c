// What a synthetic twin consists of: its tensors, and how each is filled.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json_fwd.h"

namespace loopspec {

enum class TwinFamily { kOuro, kNanbeige, kRavenLlama, kRavenOlmo, kHuginn };

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
  // Ouro, Nanbeige: size of a sublayer's contribution, beside a state of size one.
  double branch_ = 0;
  double keep_ = 0;  // Raven: how much of the state a recurrence keeps
};

}  // namespace loopspec

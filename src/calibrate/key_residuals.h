// How far the keys and values of each loop are from the last loop's, what each form of keys makes
// of them, and the plans that follow.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backends/backend.h"
#include "kv/key_plan.h"

namespace loopspec {

class KeyResiduals {
 public:
  explicit KeyResiduals(const ModelSpec& spec);

  // Takes in the first `positions` positions of `pages`, where keys and values lie as they are.
  void Add(Backend& backend, std::span<const int32_t> pages, int64_t positions);

  int64_t positions() const { return positions_; }
  int depths() const { return depths_; }  // R - 1
  int layers() const { return layers_; }
  // The norm of a depth's keys (values) minus the last depth's, over its own norm: the mean over
  // positions. depth counts from 1, up to R - 1.
  double Keys(int depth, int layer) const;
  double Values(int depth, int layer) const;
  double Keys(int depth) const;  // the mean over layers
  double Values(int depth) const;
  // The error that a form leaves in a depth's keys and values, over their norm: the root of its
  // mean square over positions and layers.
  double Error(int depth, KeyForm form) const;

 private:
  struct Norms {
    double keys = 0, values = 0;
  };
  const Norms& At(int depth, int layer) const;
  void AddPosition(Backend& backend, int32_t page, int offset, int layer);

  ModelSpec spec_;
  int depths_, layers_;
  int64_t positions_ = 0;
  std::vector<Norms> sums_;                  // [depth][layer]
  std::vector<std::vector<double>> errors_;  // [depth][form]: sums of squares
  std::vector<float> own_, coded_, last_;    // [head_dim]
};

// The forms that plans are made of: int8, residuals from the most bits to the fewest, the last.
std::vector<KeyForm> AllKeyForms();

// Plans to judge: for one tolerance after another the cheapest form of every depth whose error is
// at most that many times int8's; with all forms, and with int8 and the last loop's alone. Each
// once, the cheapest first, without int8 everywhere.
std::vector<KeyPlan> PlansFor(const KeyResiduals& residuals, const ModelSpec& spec, int readouts);

}  // namespace loopspec

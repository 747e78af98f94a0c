// From a readout's logits to its decision, on one thread: a pure function of the logits, the plan
// and the recorded distributions.
#pragma once

#include <span>
#include <vector>

#include "backends/backend.h"
#include "sampling/filters.h"

namespace loopspec::cpu {

struct DecideScratch {
  std::vector<float> masked;  // [vocab]
  std::vector<float> values;  // [vocab]
  FilterScratch filter;
  std::vector<int32_t> ranking;  // for top log-probabilities
};

// Distributions of recorded drafts: proposal j of a cell lies at base + (cell * proposals + j) *
// vocab.
struct DistributionStore {
  float* base = nullptr;
  int proposals = 0;
  int64_t vocab = 0;

  float* At(int cell, int proposal) const {
    return base + (int64_t{cell} * proposals + proposal) * vocab;
  }
};

Decision Decide(const ReadoutPlan& plan, int cell, std::span<const float> logits,
                const DistributionStore& store, DecideScratch& scratch);

}  // namespace loopspec::cpu

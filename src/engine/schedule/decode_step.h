// One step of all sequences that decode: rows are chosen, planned, run and absorbed.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "backends/backend.h"
#include "decode/row_choice.h"
#include "engine/load/step_cost.h"
#include "engine/schedule/schedule.h"
#include "engine/schedule/sequence.h"

namespace loopspec {

class DecodeStep {
 public:
  DecodeStep(Backend& backend, int max_running, int max_rows, const StepCost& cost);

  // The backend's part of a step. Throws what the backend throws.
  void Run(std::span<Sequence* const> sequences);
  // Then, for sequences[i], what was decided about it.
  void Absorb(size_t i);

  const StepPlan& plan() const { return plan_; }
  const StepCost& cost() const { return cost_.cost(); }  // follows what steps take
  bool costs_disagree() const { return cost_.Disagrees(); }

 private:
  void ChooseRows();
  void AwaitEachOther();
  int64_t Plan();
  void Observe(int64_t planes);
  std::span<const Decision> DecisionsOf(const Sequence& sequence, size_t begin, size_t end);

  Backend& backend_;
  const int max_rows_;
  StepCostTracker cost_;
  RowChooser chooser_;
  std::span<Sequence* const> sequences_;
  bool drafting_ = true;
  std::vector<RequestLoad> loads_;  // of the sequences
  std::vector<RowState> rows_;
  std::vector<char> advance_;
  StepPlan plan_;
  const StepResult* result_ = nullptr;
  std::vector<Decision> assumed_;  // of a timing simulation
  double planning_ = 0;            // seconds
};

}  // namespace loopspec

// Step costs as real decoding meets them.
//
// Costs are measured with steps that repeat themselves: the fastest of a few, everything they read
// still in the caches. Steps of a real text are slower, each part by its own factor, and there is
// time between them. What decides between depths is hardly touched by it; what a user is promised
// in tokens per second is.
#pragma once

#include <array>
#include <vector>

#include "calibrate/simulate.h"
#include "decode/step_cost.h"
#include "loopspec/token.h"

namespace loopspec {

class CostPace {
 public:
  explicit CostPace(const StepCost& cost) : cost_(cost) {}

  // One step of a text, and the text when it has been written.
  void Observe(const StepPlan& plan, const StepResult& result);
  void ObserveText(const Statistics& statistics);

  // The costs, such that they give the time that the texts took.
  StepCost Corrected() const;

 private:
  struct Part {
    double taken = 0, expected = 0;
    // Taken over expected; a part with next to nothing in it goes by `otherwise`.
    double Ratio(double otherwise, double least) const;
  };

  StepCost cost_;
  Part prelude_, recur_, readout_;
  std::array<Part, StepCost::kRows.size()> by_rows_;  // of recur_, by the nearest of kRows
  double steps_ = 0, inside_ = 0, outside_ = 0;       // seconds in and around the steps
  std::vector<char> seen_;
};

}  // namespace loopspec

#include "calibrate/cost_pace.h"

#include <algorithm>
#include <cmath>

namespace loopspec {
namespace {

// A part whose expected seconds are a smaller share of all says nothing by itself.
constexpr double kLeastShare = 0.02;
constexpr double kSlowest = 5;  // what is beyond was an interruption, not the cost of a step

size_t Nearest(int rows) {
  size_t nearest = 0;
  for (size_t i = 1; i < StepCost::kRows.size(); ++i) {
    if (std::abs(StepCost::kRows[i] - rows) < std::abs(StepCost::kRows[nearest] - rows))
      nearest = i;
  }
  return nearest;
}

}  // namespace

double CostPace::Part::Ratio(double otherwise, double least) const {
  return expected > least ? std::clamp(taken / expected, 1 / kSlowest, kSlowest) : otherwise;
}

void CostPace::Observe(const StepPlan& plan, const StepResult& result) {
  if (plan.rows.empty()) return;
  const RowPlan& first = plan.rows.front();
  const StepSeconds expected =
      SecondsOf(plan, cost_, static_cast<double>(first.position - first.chain_length), seen_);
  const auto add = [](Part& part, double taken, double seconds) {
    part.taken += taken;
    part.expected += seconds;
  };
  add(prelude_, result.prelude_seconds, expected.prelude);
  add(recur_, result.recur_seconds, expected.recur);
  add(readout_, result.readout_seconds, expected.readout);
  add(by_rows_[Nearest(static_cast<int>(plan.rows.size()))], result.recur_seconds, expected.recur);
  ++steps_;
  inside_ += result.prelude_seconds + result.recur_seconds + result.readout_seconds;
}

void CostPace::ObserveText(const Statistics& statistics) {
  outside_ += statistics.decode_seconds;
}

StepCost CostPace::Corrected() const {
  const double expected = prelude_.expected + recur_.expected + readout_.expected;
  if (!(expected > 0) || !(inside_ > 0)) return cost_;
  const double least = kLeastShare * expected;
  const double pace = Part{inside_, expected}.Ratio(1, 0);
  const double recur = recur_.Ratio(pace, least), prelude = prelude_.Ratio(pace, least);
  const double readout = readout_.Ratio(pace, least);
  StepCost cost = cost_;
  for (size_t i = 0; i < cost.recurrence.size(); ++i)
    cost.recurrence[i] *= by_rows_[i].Ratio(recur, least);
  // More rows never take less.
  for (size_t i = 1; i < cost.recurrence.size(); ++i)
    cost.recurrence[i] = std::max(cost.recurrence[i], cost.recurrence[i - 1]);
  cost.plane_position *= recur;
  cost.row_position *= recur;
  cost.prelude *= prelude;
  cost.prelude_row *= prelude;
  cost.readout *= readout;
  cost.readout_row *= readout;
  cost.step = std::max(0.0, outside_ - inside_) / steps_;
  return cost;
}

}  // namespace loopspec

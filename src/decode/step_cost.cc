#include "decode/step_cost.h"

#include <algorithm>

namespace loopspec {

double StepCost::Recurrence(int rows) const {
  if (rows <= kRows[0]) return recurrence[0];
  size_t i = 1;
  while (i + 1 < kRows.size() && rows > kRows[i]) ++i;
  const double slope = (recurrence[i] - recurrence[i - 1]) / (kRows[i] - kRows[i - 1]);
  return recurrence[i - 1] + slope * (rows - kRows[i - 1]);
}

StepSeconds StepCost::Of(const StepWork& work) const {
  StepSeconds seconds;
  seconds.prelude = std::min(1.0, work.preludes) * prelude + work.preludes * prelude_row;
  seconds.readout = std::min(1.0, work.readouts) * readout + work.readouts * readout_row;
  seconds.rest = step;
  if (work.rows > 0) {
    seconds.recur = work.recurrences * (Recurrence(work.rows) + work.row_positions * row_position +
                                        work.plane_positions * plane_position);
  }
  return seconds;
}

}  // namespace loopspec

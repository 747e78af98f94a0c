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

}  // namespace loopspec

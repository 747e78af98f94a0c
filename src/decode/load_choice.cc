#include "decode/load_choice.h"

#include <algorithm>
#include <cmath>

namespace loopspec {
namespace {

// One recurrence of `rows` rows, with attention to the committed positions.
double Recurrence(const LoadQuestion& q, double rows, const StepCost& cost) {
  const double planes = std::min<double>(rows, q.sequences * q.recurrence);
  return cost.Recurrence(static_cast<int>(rows)) +
         q.context * (rows * cost.row_position + planes * cost.plane_position);
}

}  // namespace

double PlainRate(const LoadQuestion& q, const StepCost& cost) {
  const double n = q.sequences;
  // All R recurrences of a token are one step.
  return n / (cost.step + q.recurrence * Recurrence(q, n, cost) + cost.prelude +
              n * cost.prelude_row + cost.readout + n * cost.readout_row);
}

double DraftingRate(const LoadQuestion& q, const StepCost& cost) {
  const double n = q.sequences, r = q.recurrence;
  const double d2 = q.second_depth > 0 ? q.second_depth : r;
  const double restart = std::max(0.0, 1.0 - q.first - q.second);
  const double fastest = r / (q.first * q.first_depth + q.second * d2 + restart * r);
  const double a = std::clamp(q.first, 0.0, 0.999);
  double best = 0;
  for (int rows = q.sequences; rows <= std::max(q.sequences, q.most_rows); ++rows) {
    const double each = rows / n;
    // Of the rows of a request one is sure to be needed, the next with the probability of a draft,
    // and so on; no request is faster than its drafts let it be.
    const double useful = std::min((1.0 - std::pow(a, each)) / (1.0 - a), fastest);
    // Steps are short, since rows of different depths are read out at different times.
    const double readouts = rows * (q.proposals + 1) / r, preludes = rows / r;
    const double seconds = cost.step + Recurrence(q, rows, cost) +
                           std::min(1.0, readouts) * cost.readout + readouts * cost.readout_row +
                           std::min(1.0, preludes) * cost.prelude + preludes * cost.prelude_row;
    best = std::max(best, n * useful / r / seconds);
    if (useful >= fastest) break;
  }
  return best;
}

}  // namespace loopspec

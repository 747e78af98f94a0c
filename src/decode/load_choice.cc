#include "decode/load_choice.h"

#include <algorithm>
#include <cmath>

namespace loopspec {
namespace {

// Drafts are taken up again only for a gain beyond the error of the estimate.
constexpr double kDraftingGain = 1.03;

StepWork WorkOf(const LoadQuestion& q, int rows) {
  StepWork work;
  work.rows = rows;
  work.row_positions = rows * q.context;
  work.plane_positions = std::min(rows, q.sequences * q.recurrence) * q.context;
  return work;
}

}  // namespace

bool DraftsGain(std::span<const RequestLoad> requests, int recurrence, int most_rows, bool drafting,
                const StepCost& cost) {
  LoadQuestion mean;
  mean.sequences = static_cast<int>(requests.size());
  mean.recurrence = recurrence;
  mean.most_rows = most_rows;
  mean.first_depth = mean.first = mean.second = 0;
  double drafters = 0;
  for (const RequestLoad& request : requests) {
    mean.context += static_cast<double>(request.context);
    if (request.depths.empty()) continue;
    ++drafters;
    mean.proposals = static_cast<int>(request.depths.size());
    mean.first_depth += request.depths[0];
    mean.second_depth += request.depths.size() > 1 ? request.depths[1] : recurrence;
    mean.first += request.first;
    mean.second += request.second;
  }
  if (mean.sequences < 2 || drafters == 0) return true;
  mean.context /= mean.sequences;
  for (double* sum : {&mean.first_depth, &mean.second_depth, &mean.first, &mean.second})
    *sum /= drafters;
  return DraftingRate(mean, cost) > (drafting ? 1.0 : kDraftingGain) * PlainRate(mean, cost);
}

double PlainRate(const LoadQuestion& q, const StepCost& cost) {
  StepWork work = WorkOf(q, q.sequences);
  work.recurrences = q.recurrence;  // all of a token are one step
  work.preludes = work.readouts = q.sequences;
  return q.sequences / cost.Of(work).total();
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
    StepWork work = WorkOf(q, rows);
    work.preludes = rows / r;
    work.readouts = rows * (q.proposals + 1) / r;
    best = std::max(best, n * useful / r / cost.Of(work).total());
    if (useful >= fastest) break;
  }
  return best;
}

}  // namespace loopspec

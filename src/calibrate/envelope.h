// Numbers behind calibration: the power law that bounds the distance to the target by depth, the
// depths that it makes best, and how well one ranking predicts another. Pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "decode/depths.h"

namespace loopspec {

// Mean total variation distance to the target distribution at one depth.
struct DepthDistance {
  int depth = 0;
  double distance = 0;
};

// phi(r) = beta r^-alpha with phi(r) >= distance at every depth and the largest ratio
// phi(r) / distance as small as it can be, as the paper defines its envelope.
struct PowerLawEnvelope {
  double alpha = 0, beta = 0;
  double worst_ratio = 1;  // the largest phi(r) / distance, at least 1
  double At(double depth) const;
};

// Solves the fit exactly: in logarithms it is the line above all points with the smallest vertical
// strip below it. Several distances may stand at one depth (one for each benchmark); those of zero
// say nothing and are left out. Throws Error unless two depths are left and alpha comes out
// positive.
PowerLawEnvelope FitEnvelope(std::span<const DepthDistance> points);

// A sentence where the power law says little: beta above 1 (a distance is at most 1), or more than
// three times a measured distance somewhere.
std::optional<std::string> EnvelopeWarning(const PowerLawEnvelope& envelope);

// Theorem 2: what R must exceed for the closed form to give 1 <= d1 < d2 < R.
double SmallestRecurrence(double alpha, double beta);

// The closed form and whether the theorem's condition holds.
struct DepthChoice {
  OptimalDepths depths;
  bool condition_holds = false;
  double smallest_recurrence = 0;
};
DepthChoice ChooseDepths(const PowerLawEnvelope& envelope, int recurrence);

// The bound on expected recurrent steps per token that the closed form minimises:
// d1 + phi(d1) d2 + 2 phi(d2) R.
double StepBound(const PowerLawEnvelope& envelope, double d1, double d2, int recurrence);

// Spearman's rank correlation; equal values share their mean rank. Nothing when there are fewer
// than two pairs or one side is constant. Both must have the same length.
std::optional<double> RankCorrelation(std::span<const double> a, std::span<const double> b);

}  // namespace loopspec

#include "calibrate/envelope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/error.h"

namespace loopspec {
namespace {

struct Point {
  double x, y;  // logarithms of depth and distance
};

// The line through the highest point y + slope * x, for y falling with `slope`.
double Top(const std::vector<Point>& points, double slope) {
  double top = -std::numeric_limits<double>::infinity();
  for (const Point& p : points) top = std::max(top, p.y + slope * p.x);
  return top;
}

double Width(const std::vector<Point>& points, double slope) {
  double bottom = std::numeric_limits<double>::infinity();
  for (const Point& p : points) bottom = std::min(bottom, p.y + slope * p.x);
  return Top(points, slope) - bottom;
}

// How far the line lies above the points, summed: decides between slopes of the same width.
double TotalGap(const std::vector<Point>& points, double slope) {
  const double top = Top(points, slope);
  double sum = 0;
  for (const Point& p : points) sum += top - (p.y + slope * p.x);
  return sum;
}

std::vector<double> Ranks(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t i, size_t j) { return values[i] < values[j]; });
  std::vector<double> ranks(values.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin + 1;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    for (size_t i = begin; i < end; ++i) {
      ranks[order[i]] = static_cast<double>(begin + end - 1) / 2;
    }
    begin = end;
  }
  return ranks;
}

}  // namespace

double PowerLawEnvelope::At(double depth) const {
  return beta * std::pow(depth, -alpha);
}

PowerLawEnvelope FitEnvelope(std::span<const DepthDistance> points) {
  std::vector<Point> logs;
  for (const DepthDistance& point : points) {
    if (point.depth < 1)
      Fail("an envelope over depths: found depth {}, expected 1 or more", point.depth);
    if (!(point.distance >= 0 && point.distance <= 1)) {
      Fail("an envelope over distances: found {} at depth {}, expected 0 to 1", point.distance,
           point.depth);
    }
    if (point.distance > 0) logs.push_back({std::log(point.depth), std::log(point.distance)});
  }
  // The width of the strip is convex and piecewise linear in the slope, and its corners are slopes
  // between two points: the best slope is among them.
  double best = 0;
  bool found = false;
  double width = 0, gap = 0;
  for (size_t i = 0; i < logs.size(); ++i) {
    for (size_t j = i + 1; j < logs.size(); ++j) {
      if (logs[i].x == logs[j].x) continue;
      const double slope = (logs[i].y - logs[j].y) / (logs[j].x - logs[i].x);
      const double w = Width(logs, slope), g = TotalGap(logs, slope);
      constexpr double kSame = 1e-12;
      if (!found || w < width - kSame || (w < width + kSame && g < gap - kSame)) {
        best = slope;
        width = w;
        gap = g;
        found = true;
      }
    }
  }
  if (!found) Fail("an envelope needs distances over zero at two depths or more");
  if (best <= 0) {
    Fail(
        "the distance to the target does not fall with depth (alpha = {:.3f}): no power law bounds "
        "it",
        best);
  }
  return {best, std::exp(Top(logs, best)), std::exp(width)};
}

std::optional<std::string> EnvelopeWarning(const PowerLawEnvelope& envelope) {
  constexpr double kLoose = 3;
  std::string text;
  if (envelope.beta > 1)
    text = fmt::format("beta is {:.2f}, above 1, which no distance exceeds", envelope.beta);
  if (envelope.worst_ratio > kLoose) {
    text += fmt::format("{}the envelope is up to {:.1f} times a measured distance, above {:g}",
                        text.empty() ? "" : "; ", envelope.worst_ratio, kLoose);
  }
  if (text.empty()) return std::nullopt;
  return text + ": the depths that it makes best mean little";
}

double SmallestRecurrence(double alpha, double beta) {
  const double ab = alpha * beta;
  const double first = std::pow(ab, 1 / alpha);
  const double second = std::pow(ab, -alpha - 1);
  const double third = first * std::pow(2 * alpha, (alpha * alpha + alpha + 1) / (alpha * alpha));
  return std::max({first, second, third}) / (2 * alpha);
}

DepthChoice ChooseDepths(const PowerLawEnvelope& envelope, int recurrence) {
  DepthChoice choice;
  choice.depths = ComputeOptimalDepths(envelope.alpha, envelope.beta, recurrence);
  choice.smallest_recurrence = SmallestRecurrence(envelope.alpha, envelope.beta);
  choice.condition_holds = recurrence > choice.smallest_recurrence;
  return choice;
}

double StepBound(const PowerLawEnvelope& envelope, double d1, double d2, int recurrence) {
  return d1 + envelope.At(d1) * d2 + 2 * envelope.At(d2) * recurrence;
}

std::optional<double> RankCorrelation(std::span<const double> a, std::span<const double> b) {
  LOOPSPEC_CHECK(a.size() == b.size());
  if (a.size() < 2) return std::nullopt;
  const std::vector<double> ra = Ranks(a), rb = Ranks(b);
  const double mean = static_cast<double>(a.size() - 1) / 2;
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < ra.size(); ++i) {
    ab += (ra[i] - mean) * (rb[i] - mean);
    aa += (ra[i] - mean) * (ra[i] - mean);
    bb += (rb[i] - mean) * (rb[i] - mean);
  }
  if (aa == 0 || bb == 0) return std::nullopt;
  return ab / std::sqrt(aa * bb);
}

}  // namespace loopspec

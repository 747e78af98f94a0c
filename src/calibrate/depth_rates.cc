#include "calibrate/depth_rates.h"

#include <algorithm>
#include <cmath>

#include "sampling/cascade.h"

namespace loopspec {
namespace {

constexpr int kMostTriples = 300;

int64_t Triples(int64_t depths) {
  return depths * (depths - 1) * (depths - 2) / 6;
}

// Depths from which triples are made.
std::vector<int> TripleGrid(int recurrence) {
  std::vector<int> grid;
  const bool thin = TriplesAreThinned(recurrence);
  for (int depth = 1; depth < recurrence;
       depth = thin ? std::max(depth + 1, static_cast<int>(std::lround(depth * 1.36))) : depth + 1)
    grid.push_back(depth);
  return grid;
}

// The positive part of a - b, normalised, and its mass before; a mass of nothing leaves zeros.
double Residual(std::span<const double> a, std::span<const double> b, std::vector<double>& out) {
  out.assign(a.size(), 0.0);
  double mass = 0;
  for (size_t i = 0; i < a.size(); ++i) mass += std::max(0.0, a[i] - b[i]);
  if (!(mass > kLeastMass)) return 0.0;
  for (size_t i = 0; i < a.size(); ++i) out[i] = std::max(0.0, a[i] - b[i]) / mass;
  return mass;
}

double Overlap(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::min(a[i], b[i]);
  return sum;
}

// Scratch of AddCascade: kept, since it is called for every position and set of depths.
struct CascadeScratch {
  std::vector<double> target1, target2;  // the target after one rejection and after two
  std::vector<double> q2, deep, q3;
};

}  // namespace

void AddGreedy(const PositionReadouts& readouts, DepthRates& sum) {
  const int32_t target = readouts.choices.back();
  bool decided = false;
  for (size_t j = 0; j < sum.depths.size(); ++j) {
    const auto choice = [&](size_t k) {
      return readouts.choices[static_cast<size_t>(sum.depths[k]) - 1];
    };
    bool open = true;
    for (size_t i = 0; i < j; ++i) open = open && choice(i) != choice(j);
    if (j > 0) sum.gate[j - 1] += open ? 1 : 0;
    if (open && !decided && choice(j) == target) {
      sum.accepted[j] += 1;
      decided = true;
    }
  }
}

// With x1 drawn from q1, x2 from q2: the gate at d2 looks at x1 alone, the one at d3 at each of
// them by itself, and no distribution depends on which token was drawn. So every probability is a
// product of sums over one token each.
void AddCascade(const PositionReadouts& readouts, DepthRates& sum) {
  thread_local CascadeScratch s;
  const int recurrence = static_cast<int>(readouts.choices.size());
  const std::span<const double> target = readouts.At(recurrence), q1 = readouts.At(sum.depths[0]);
  sum.accepted[0] += Overlap(q1, target);
  if (sum.depths.size() < 2) return;
  Residual(target, q1, s.target1);

  const std::span<const double> p2 = readouts.At(sum.depths[1]);
  const bool second = Residual(p2, q1, s.q2) > 0;
  const bool third = sum.depths.size() > 2;
  const std::span<const double> p3 = third ? readouts.At(sum.depths[2]) : p2;
  const bool deep = third && Residual(p3, q1, s.deep) > 0;
  // Over x1: [whether the second gate opened] and the third saw x1 lose as well.
  double open2 = 0, rejected2 = 0, open3[2] = {0, 0}, rejected3[2] = {0, 0};
  for (size_t x = 0; x < q1.size(); ++x) {
    const double rejected = std::max(0.0, q1[x] - target[x]);
    const bool opens = second && p2[x] < q1[x];
    if (opens) open2 += q1[x], rejected2 += rejected;
    if (deep && p3[x] < q1[x]) open3[opens] += q1[x], rejected3[opens] += rejected;
  }
  sum.gate[0] += open2;
  const double overlap = second ? Overlap(s.target1, s.q2) : 0.0;
  sum.accepted[1] += rejected2 * overlap;
  if (!third) return;

  // The second gate stayed shut: the third proposal stands against the first alone.
  sum.gate[1] += open3[0];
  sum.accepted[2] += rejected3[0] * Overlap(s.target1, s.deep);
  if (!second || !deep || !(Residual(s.deep, s.q2, s.q3) > 0)) return;
  Residual(s.target1, s.q2, s.target2);
  double open = 0, rejected = 0;
  for (size_t x = 0; x < s.q2.size(); ++x) {
    if (!(s.deep[x] < s.q2[x])) continue;
    open += s.q2[x];
    rejected += std::max(0.0, s.q2[x] - s.target1[x]);
  }
  sum.gate[1] += open3[1] * open;
  sum.accepted[2] += rejected3[1] * rejected * Overlap(s.target2, s.q3);
}

bool TriplesAreThinned(int recurrence) {
  return Triples(recurrence - 1) > kMostTriples;
}

std::vector<std::vector<int>> AdmissibleDepths(int recurrence, int proposals) {
  std::vector<std::vector<int>> sets;
  for (int a = 1; a < recurrence; ++a) {
    if (proposals == 1) sets.push_back({a});
    for (int b = a + 1; b < recurrence && proposals == 2; ++b) sets.push_back({a, b});
  }
  if (proposals != 3) return sets;
  const std::vector<int> grid = TripleGrid(recurrence);
  for (size_t a = 0; a < grid.size(); ++a) {
    for (size_t b = a + 1; b < grid.size(); ++b) {
      for (size_t c = b + 1; c < grid.size(); ++c) sets.push_back({grid[a], grid[b], grid[c]});
    }
  }
  return sets;
}

}  // namespace loopspec

// A team walks a vocabulary together. The sampling code is written once over this interface: on the
// CPU the team is one thread, on a GPU it is a block whose threads share the walk. Reductions have
// one fixed order per team type.
#pragma once

#include <cstdint>

namespace loopspec {

struct SerialTeam {
  // f(i) for every i in [0, n).
  template <typename F>
  void ForEach(int n, F f) const {
    for (int i = 0; i < n; ++i) f(i);
  }

  // Sum of f(i) in double. Eight running sums keep the adder busy; their order is fixed.
  template <typename F>
  double Sum(int n, F f) const {
    double part[8] = {};
    int i = 0;
    for (; i + 8 <= n; i += 8) {
      for (int lane = 0; lane < 8; ++lane) part[lane] += static_cast<double>(f(i + lane));
    }
    for (; i < n; ++i) part[i % 8] += static_cast<double>(f(i));
    return ((part[0] + part[4]) + (part[1] + part[5])) +
           ((part[2] + part[6]) + (part[3] + part[7]));
  }

  // Where the running sum of weight(i) first exceeds u * total. A token of weight zero is never
  // returned: rounding may carry the target past the end, and then the last positive entry closes
  // the sum. -1 when no entry is positive.
  template <typename F>
  int Choose(int n, F weight, double total, double u) const {
    const double target = u * total;
    double sum = 0.0;
    int last = -1;
    for (int i = 0; i < n; ++i) {
      const double w = static_cast<double>(weight(i));
      if (!(w > 0.0)) continue;
      sum += w;
      last = i;
      if (sum > target) return i;
    }
    return last;
  }
};

}  // namespace loopspec

// Chooses how many members of a team of threads take part in a run. Beside other busy processes a
// member may be away for milliseconds, and all the others wait for it at the next barrier: a
// smaller team that is always there can be faster. Measured, not guessed: the size that got the
// most work done per second is kept, and another one is tried from time to time.
#pragma once

#include <cstdint>

namespace loopspec {

// What a run cost, summed over the members that took part.
struct RunCost {
  double wall = 0.0;     // seconds from the start of the run to its end
  double blocked = 0.0;  // seconds that members slept at barriers
  double work = 0.0;     // seconds of CPU time, if measuring() less those spent spinning
};

class TeamSize {
 public:
  explicit TeamSize(int members) : full_(members), base_(members), current_(members) {}

  // Members that take part in the next run.
  int current() const { return current_; }
  // Whether the time spent spinning counts in the next run. False while the whole team loses none.
  bool measuring() const { return measuring_; }

  void Add(const RunCost& cost);

 private:
  void StartMeasuring(double rate);
  void EndWindow(double blocked_share, double rate);
  int NextTrial();

  int full_;
  int base_;     // the best size known
  int current_;  // the size in this window: base_, or one that is tried
  bool measuring_ = false;
  RunCost window_;          // since the window began
  double base_rate_ = 0.0;  // work per second of base_ in its last window
  int failures_ = 0;        // trials since base_ was last replaced
  int until_trial_ = 1;     // windows of base_ before the next one
  uint32_t random_ = 1;
};

}  // namespace loopspec

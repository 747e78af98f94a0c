// Chooses how many members of a team of threads take part in a run. Beside other busy processes a
// member may be preempted for milliseconds, and all the others wait for it at the next barrier:
// fewer members, on cores that nobody else wants, can be faster. From the time that each member got
// follows which smaller team promises more; it stays if it keeps the promise, and the whole team is
// tried again from time to time.
#pragma once

#include <span>
#include <vector>

namespace loopspec {

// Where the time of one member went in a run, in seconds. What is left of the run's own time, it
// wanted to work and had no core.
struct MemberTime {
  double cpu = 0.0;    // on a core, working or spinning
  double spun = 0.0;   // of it, spinning at barriers; while not measuring(), long waits only
  double slept = 0.0;  // asleep at barriers
};

class TeamSize {
 public:
  explicit TeamSize(int members);

  // Members that take part in the next run.
  int current() const { return current_; }
  // True while the team loses time.
  bool measuring() const { return measuring_; }

  // A run of current() members that took `wall` seconds.
  void Add(double wall, std::span<const MemberTime> members);

 private:
  void EndWindow(double slept_share, double rate);
  int Promising(double rate) const;

  const int full_;
  int current_;  // the size in this window
  int base_;     // the best size known; current_ is another one during a trial
  bool measuring_ = false;
  double base_rate_ = 0.0;  // seconds of work per second, by base_ in its last window
  int failures_ = 0;        // trials that failed since one was a success
  int pause_ = 0;           // windows before the next trial
  // Of this window.
  double wall_ = 0.0;
  std::vector<MemberTime> members_;
  int promising_ = 0;  // the size that promises most, from the last window of the whole team
};

}  // namespace loopspec

#include "base/team_size.h"

#include <algorithm>

namespace loopspec {
namespace {

// Long enough for several turns of the operating system's scheduler (4 ms each, and one for every
// busy process on the core), short enough that a bad choice costs little.
constexpr double kNoticeSeconds = 0.02;
constexpr double kWindowSeconds = 0.06;
// The share of the team's time spent asleep at barriers from which on something is wrong, and below
// which all is well again.
constexpr double kLostShare = 0.10;
constexpr double kWellShare = 0.05;
// A size must be better by this factor: windows differ by chance.
constexpr double kBetter = 1.05;
// A trial ends early when it does less than this share of what base_ does.
constexpr double kHopeless = 0.6;
constexpr int kMaxPause = 16;  // windows between trials

}  // namespace

void TeamSize::Add(const RunCost& cost) {
  if (full_ == 1) return;
  window_.wall += cost.wall;
  window_.blocked += cost.blocked;
  window_.work += cost.work;
  if (window_.wall < kNoticeSeconds) return;
  const double blocked_share = window_.blocked / (window_.wall * current_);
  const double rate = window_.work / window_.wall;
  const bool hopeless = current_ != base_ && rate < kHopeless * base_rate_;
  if (measuring_ && !hopeless && window_.wall < kWindowSeconds) return;
  window_ = {};
  if (measuring_) {
    EndWindow(blocked_share, rate);
  } else if (blocked_share > kLostShare) {
    StartMeasuring(rate);
  }
}

void TeamSize::StartMeasuring(double rate) {
  measuring_ = true;
  base_rate_ = rate;
  failures_ = 0;
  current_ = NextTrial();
}

void TeamSize::EndWindow(double blocked_share, double rate) {
  if (current_ == full_ && blocked_share < kWellShare) {
    base_ = full_;
    measuring_ = false;
    return;
  }
  if (current_ == base_) {
    base_rate_ = rate;
  } else if (rate > kBetter * base_rate_) {
    base_ = current_;
    base_rate_ = rate;
    failures_ = 0;
  } else {
    ++failures_;
  }
  if (current_ != base_ || --until_trial_ > 0) {
    current_ = base_;  // measured afresh before the next trial
  } else {
    current_ = NextTrial();
  }
}

// Another size that could do better than base_, at random: n members do at most n seconds of work
// per second. Every other trial goes to the whole team, for the others may have gone. Trials become
// rarer each time that as many have failed as there are sizes.
int TeamSize::NextTrial() {
  const int least = static_cast<int>(kBetter * base_rate_) + 1;
  const int sizes = full_ - std::min(least, full_) + 1;
  const int doublings = failures_ / std::max(1, sizes - 1);
  until_trial_ = doublings < 4 ? 1 << doublings : kMaxPause;
  random_ = random_ * 1664525u + 1013904223u;
  const int size = random_ >> 31 != 0
                       ? full_
                       : full_ - static_cast<int>((random_ >> 8) % static_cast<uint32_t>(sizes));
  if (size != base_) return size;
  // base_ itself was drawn: the next one below, or the whole team.
  return base_ - 1 >= least ? base_ - 1 : full_;
}

}  // namespace loopspec

#include "base/team_size.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace loopspec {
namespace {

// A window is long enough for several turns of the operating system's scheduler (4 ms each, one for
// every busy process on the core) and for threads to find their cores after a change.
constexpr double kNoticeSeconds = 0.02;
constexpr double kWindowSeconds = 0.10;
// The share of the team's time spent asleep at barriers from which on something is wrong, and below
// which all is well again.
constexpr double kLostShare = 0.10;
constexpr double kWellShare = 0.05;
// A larger team must do more than a smaller one by this factor. Members share caches and memory, so
// a second of work of each is worth less in company, and windows differ by chance.
constexpr double kLargerMustDo = 1.1;
// A smaller team may do a little less than a larger one for the same reason.
constexpr double kSmallerMustDo = 0.95;
// Below this mean number of busy processes beside it a member counts as undisturbed.
constexpr double kUndisturbed = 0.15;
// A trial ends early when it does less than this share of what base_ does.
constexpr double kHopeless = 0.6;

}  // namespace

TeamSize::TeamSize(int members)
    : full_(members), current_(members), base_(members), members_(static_cast<size_t>(members)) {}

void TeamSize::Add(double wall, std::span<const MemberTime> members) {
  LOOPSPEC_CHECK(static_cast<int>(members.size()) == current_);
  if (full_ == 1) return;
  wall_ += wall;
  double slept = 0.0, work = 0.0;
  for (size_t i = 0; i < members.size(); ++i) {
    members_[i].cpu += members[i].cpu;
    members_[i].spun += members[i].spun;
    members_[i].slept += members[i].slept;
    slept += members_[i].slept;
    work += members_[i].cpu - members_[i].spun;
  }
  if (wall_ < kNoticeSeconds) return;
  const double slept_share = slept / (wall_ * current_), rate = work / wall_;
  const bool hopeless = current_ != base_ && rate < kHopeless * base_rate_;
  if (measuring_ && !hopeless && wall_ < kWindowSeconds) return;
  if (measuring_) {
    EndWindow(slept_share, rate);
  } else {
    measuring_ = slept_share > kLostShare;
    failures_ = pause_ = 0;
  }
  wall_ = 0.0;
  std::fill(members_.begin(), members_.end(), MemberTime{});
}

void TeamSize::EndWindow(double slept_share, double rate) {
  if (current_ == base_) {
    base_rate_ = rate;
  } else if (rate > (current_ < base_ ? kSmallerMustDo : kLargerMustDo) * base_rate_) {
    base_ = current_;
    base_rate_ = rate;
    failures_ = 0;
  } else {
    ++failures_;
  }
  if (current_ == full_) {
    if (slept_share < kWellShare) {
      base_ = full_;
      measuring_ = false;
      return;
    }
    promising_ = Promising(rate);
  }
  if (current_ != base_) {  // the trial has failed: the next one waits twice as long
    current_ = base_;
    pause_ = 2 << std::min(failures_, 4);
  } else if (pause_ > 0) {
    --pause_;
  } else {
    current_ = base_ == full_ ? promising_ : full_;
    if (current_ != base_) pause_ = 4;
  }
}

// The members that would have cores to themselves, if they promise about as much as the whole team
// does; else the whole team.
int TeamSize::Promising(double rate) const {
  // A core shared with k busy processes is a member's for 1 / (1 + k) of the time that it wants it.
  double others = 0.0;
  int undisturbed = 0;
  for (const MemberTime& time : members_) {
    const double without_core = std::max(0.0, wall_ - time.cpu - time.slept);
    const double beside = without_core / std::max(1e-9, time.cpu);
    others += beside;
    undisturbed += beside < kUndisturbed;
  }
  // The system moves the others to the cores that are left to them. Half a process too many is no
  // more than the error of the estimate.
  const int alone = std::max(undisturbed, static_cast<int>(std::floor(full_ - others + 0.5)));
  return alone >= 1 && alone > kSmallerMustDo * rate ? alone : full_;
}

}  // namespace loopspec

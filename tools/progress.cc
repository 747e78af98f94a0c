#include "tools/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace loopspec::tools {
namespace {

constexpr double kEveryErasable = 0.2, kEveryPlain = 5;  // seconds between two showings

}  // namespace

bool CanErase(int fd) {
  const char* terminal = std::getenv("TERM");
  return isatty(fd) != 0 && (terminal == nullptr || std::string_view(terminal) != "dumb");
}

ProgressLine::ProgressLine(double after, Otherwise otherwise)
    : erasable_(CanErase(STDERR_FILENO)),
      plain_(!erasable_ && otherwise == Otherwise::kPlainLines),
      after_(after) {}

ProgressLine::~ProgressLine() {
  Clear();
}

std::string ClockTime(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  const int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
  return fmt::format("{}:{:02}", minutes, whole % 60);
}

void ProgressLine::Show(const std::string& what, int64_t done, int64_t total, const char* unit) {
  if (first_done_ < 0) {
    first_done_ = done;
    since_first_.Reset();
  }
  if (!(erasable_ || plain_) || since_start_.Seconds() < after_) return;
  if (plain_ && done == total) return;  // what follows says as much
  if (shown_ && since_shown_.Seconds() < (plain_ ? kEveryPlain : kEveryErasable) && done < total)
    return;
  shown_ = true;
  since_shown_.Reset();
  std::string left;
  if (done > first_done_ && done < total) {
    const double each = since_first_.Seconds() / static_cast<double>(done - first_done_);
    left = fmt::format(", {} left", ClockTime(each * static_cast<double>(total - done)));
  }
  const std::string line = fmt::format("{}: {} of {} {}{}", what, done, total, unit, left);
  if (plain_)
    fmt::print(stderr, "{}\n", line);
  else
    fmt::print(stderr, "\r{}\033[K", line);
}

void ProgressLine::Clear() {
  if (shown_ && erasable_) fmt::print(stderr, "\r\033[K");
  shown_ = false;
}

}  // namespace loopspec::tools

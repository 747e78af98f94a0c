#include "tools/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace loopspec::tools {

bool CanErase(int fd) {
  const char* terminal = std::getenv("TERM");
  return isatty(fd) != 0 && (terminal == nullptr || std::string_view(terminal) != "dumb");
}

ProgressLine::ProgressLine(double after) : possible_(CanErase(STDERR_FILENO)), after_(after) {}

ProgressLine::~ProgressLine() {
  Clear();
}

void ProgressLine::Show(const std::string& what, int64_t done, int64_t total, const char* unit) {
  if (!possible_ || since_start_.Seconds() < after_) return;
  if (shown_ && since_shown_.Seconds() < 0.2 && done < total) return;
  shown_ = true;
  since_shown_.Reset();
  fmt::print(stderr, "\r{}: {} of {} {}\033[K", what, done, total, unit);
}

void ProgressLine::Clear() {
  if (shown_) fmt::print(stderr, "\r\033[K");
  shown_ = false;
}

}  // namespace loopspec::tools

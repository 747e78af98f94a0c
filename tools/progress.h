// Says on stderr how far a long piece of work is: one line that is taken away again, on a terminal
// that can; elsewhere, where that was asked for, a plain line every few seconds.
#pragma once

#include <cstdint>
#include <string>

#include "base/timer.h"

namespace loopspec::tools {

// Whether a stream is a terminal that understands escapes: not one with TERM=dumb.
bool CanErase(int fd);

// "0:12", "1:05:00".
std::string ClockTime(double seconds);

class ProgressLine {
 public:
  // Where there is no terminal that can erase a line: nothing, or plain lines for a log.
  enum class Otherwise { kNothing, kPlainLines };

  // Nothing is shown before `after` seconds: short work needs no line.
  explicit ProgressLine(double after, Otherwise otherwise = Otherwise::kNothing);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // "measuring: 64 of 256 positions, 0:12 left", a few times a second at most; plain lines every
  // few seconds. The time left goes by what has been done since the first call.
  void Show(const std::string& what, int64_t done, int64_t total, const char* unit);
  void Clear();

 private:
  const bool erasable_;
  const bool plain_;
  const double after_;
  bool shown_ = false;
  int64_t first_done_ = -1;  // of the first call
  Timer since_start_, since_shown_, since_first_;
};

}  // namespace loopspec::tools

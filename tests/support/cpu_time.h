// Seconds of work that this thread has done: unlike the clock's, they do not grow when others use
// the machine.
#pragma once

#include <time.h>

namespace loopspec {

inline double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace loopspec

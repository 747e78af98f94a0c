// A clock for LD_PRELOAD that runs ever faster, so that the same work seems to take longer at one
// time than at another: to a program that times itself the machine is busy, whatever it really is.
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace {

constexpr long kNanoseconds = 1000000000;
constexpr double kFaster = 20;  // seconds more for every squared second of the process

double Seconds(const timespec& time) {
  return static_cast<double>(time.tv_sec) +
         static_cast<double>(time.tv_nsec) / static_cast<double>(kNanoseconds);
}

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const long failed = syscall(SYS_clock_gettime, clock, time);
  if (failed != 0 || clock != CLOCK_MONOTONIC) return static_cast<int>(failed);
  static const double start = Seconds(*time);
  const double elapsed = Seconds(*time) - start;
  const double more = kFaster * elapsed * elapsed;
  const auto whole = static_cast<time_t>(more);
  time->tv_sec += whole;
  time->tv_nsec += static_cast<long>((more - static_cast<double>(whole)) * kNanoseconds);
  if (time->tv_nsec >= kNanoseconds) {
    time->tv_nsec -= kNanoseconds;
    ++time->tv_sec;
  }
  return 0;
}

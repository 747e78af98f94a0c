#include "tools/interrupt.h"

#include <atomic>
#include <csignal>

#include "base/error.h"

namespace loopspec::tools {
namespace {

std::atomic<bool> interrupted{false};

void OnInterrupt(int) {
  interrupted.store(true, std::memory_order_relaxed);
}

}  // namespace

void CatchInterrupt() {
  struct sigaction action {};
  action.sa_handler = OnInterrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;  // the second one kills
  sigaction(SIGINT, &action, nullptr);
}

bool Interrupted() {
  return interrupted.load(std::memory_order_relaxed);
}

void StopIfInterrupted(const std::string& what) {
  if (Interrupted()) Fail("interrupted: {}", what);
}

}  // namespace loopspec::tools

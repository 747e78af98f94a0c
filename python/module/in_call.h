// Calls that are under way without Python's lock. A daemon thread that comes back for the lock when
// the interpreter is on its way out is ended by Python in the middle of C++, which ends the
// program: so the interpreter waits for them first (FinishCalls), and lets no other begin.
#pragma once

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

namespace loopspec::python {

inline std::atomic<int> calls_under_way{0};
inline std::atomic<std::thread::id> ending{};  // the thread that ends the interpreter; none yet

// Begins before the lock is given away, ends after it is back.
class InCall {
 public:
  InCall() {
    ++calls_under_way;  // first: either this thread sees the end, or the end this call
    const std::thread::id by = ending;
    if (by == std::thread::id() || by == std::this_thread::get_id()) return;
    --calls_under_way;
    throw std::runtime_error("the interpreter is ending");
  }
  ~InCall() { --calls_under_way; }
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;
};

// Without the lock, when engines are closed: all calls are about to end. A calibration is not, and
// is not waited for longer than this.
inline void FinishCalls() {
  ending = std::this_thread::get_id();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (calls_under_way > 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace loopspec::python

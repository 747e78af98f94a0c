// Ctrl-C while the engine works: Python's handlers run when somebody asks, with its lock held.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>

namespace loopspec::python {

// How long a wait without Python's lock lasts before signals are looked at.
inline constexpr std::chrono::milliseconds kSlice{40};

// Takes the lock and runs the handlers of signals that came; throws what they raised. For threads
// that have given the lock away.
inline void CheckSignals() {
  const nanobind::gil_scoped_acquire lock;
  if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
}

// For work that asks now and then whether to go on: looks every slice. What a handler raised stays
// the thread's current error until Rethrow.
class SignalWatch {
 public:
  bool Raised() {
    const auto now = std::chrono::steady_clock::now();
    if (raised_ || now - last_ < kSlice) return raised_;
    last_ = now;
    const nanobind::gil_scoped_acquire lock;
    raised_ = PyErr_CheckSignals() != 0;
    return raised_;
  }
  // With the lock held.
  void Rethrow() const {
    if (raised_) throw nanobind::python_error();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  bool raised_ = false;
};

}  // namespace loopspec::python

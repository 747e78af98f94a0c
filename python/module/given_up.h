// Work that Python waits for in slices, so that Ctrl-C ends the wait at once whatever the work is
// at. What nobody waits for any more ends by itself, and before the program does.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <utility>

#include "signals.h"

namespace loopspec::python {

// Takes over work that was given up. `ended`: waits so long for its end, and drops what it made.
void KeepGivenUp(std::function<bool(std::chrono::milliseconds most)> ended);

// Waits for all of it, so that no thread of it outlives the program.
void FinishGivenUp();

// What `work` makes. `between` is called every slice and may throw, which gives the work up.
template <typename T>
T Await(std::future<T> work, const std::function<void()>& between) {
  try {
    while (work.wait_for(kSlice) != std::future_status::ready) between();
  } catch (...) {  // the future would wait where it goes away
    auto kept = std::make_shared<std::future<T>>(std::move(work));
    KeepGivenUp([kept](std::chrono::milliseconds most) {
      if (kept->valid() && kept->wait_for(most) != std::future_status::ready) return false;
      *kept = {};
      return true;
    });
    throw;
  }
  return work.get();
}

}  // namespace loopspec::python

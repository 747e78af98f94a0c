// The process that an engine lives in. A forked child has the engine's memory and none of its
// threads: whatever waits for them waits forever, so nothing of it may be touched there.
#pragma once

#include <unistd.h>

#include "errors.h"

namespace loopspec::python {

class HomeProcess {
 public:
  bool here() const { return getpid() == pid_; }
  void Check() const {
    if (here()) return;
    throw ForkedError(
        "this engine was loaded in process " + std::to_string(pid_) + " and cannot be used in " +
        std::to_string(getpid()) +
        ", which was forked from it: load the model in the child, or start processes with "
        "multiprocessing.get_context(\"spawn\")");
  }

 private:
  const pid_t pid_ = getpid();
};

}  // namespace loopspec::python

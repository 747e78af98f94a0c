// The sandbox itself: bubblewrap with new namespaces of every kind, a read-only system without
// anything of the user's, and a list of allowed system calls.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "experiments/scoring/child_process.h"
#include "experiments/scoring/descriptor.h"
#include "experiments/scoring/python.h"

namespace loopspec::measure {

inline constexpr const char* kSandboxFolder = "/tmp";  // inside; the only place to write

// What every sandbox of this process is made of.
struct SandboxParts {
  std::string bwrap;
  std::string filter;  // of system calls
  Python python;
};

// Throws Error with one sentence that says what is missing and what helps. The first call starts a
// sandbox to see that it works.
const SandboxParts& NeedSandboxParts();

// Puts `plan`, which starts Python with absolute paths, into a sandbox. `writable_bytes` is the
// size of kSandboxFolder; 0: it cannot be written. What is returned must live until the process has
// started.
[[nodiscard]] Descriptor Isolate(const SandboxParts& parts, size_t writable_bytes, ChildPlan& plan);

}  // namespace loopspec::measure

// The part of the sandbox that runs in the child, between fork and exec: async-signal-safe calls
// only, no allocation.
#pragma once

#include "experiments/scoring/sandbox.h"

namespace loopspec::measure {

// Limits and isolates the calling process; `folder` stays writable. Returns what could be had.
SandboxIsolation IsolateProcess(const SandboxLimits& limits, const char* folder);

}  // namespace loopspec::measure

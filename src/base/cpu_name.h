// What the processor calls itself.
#pragma once

#include <string>

namespace loopspec {

// From /proc/cpuinfo: the model name, or on Arm, which has none there, the implementer and part
// numbers; "unknown" where neither is found.
std::string CpuName();

}  // namespace loopspec

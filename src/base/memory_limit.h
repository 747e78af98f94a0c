// How much memory this process can ever have, to refuse at once what would fail late.
#pragma once

#include <cstdint>
#include <string>

namespace loopspec {

struct MemoryLimit {
  int64_t bytes;
  const char* what;  // "this machine has", "this container may use", "this process may use"
};

// The least of physical memory, the container's limit and the process's own (ulimit -v).
MemoryLimit GetMemoryLimit();

// Throws Error with both numbers when `bytes` exceed the limit. `what` says what they are for:
// "keys and values of 1000 positions".
void CheckMemory(double bytes, const std::string& what);

}  // namespace loopspec

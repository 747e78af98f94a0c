// Whose the server's memory is: shown in /metrics, and in the log when the server drains.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "loopspec/metrics.h"

namespace loopspec::serve {

// What the system and the C library say of the process.
struct MemoryCounts {
  int64_t anonymous = 0;       // bytes resident that no file holds
  int64_t files = 0;           // bytes resident of mapped files, the weights among them
  int64_t allocator_free = 0;  // bytes free in the C library's pools, given back or not

  static MemoryCounts Now();
};

struct MemoryUse {
  MemoryCounts process;
  int64_t key_values = 0;      // pages that requests hold
  int64_t prefix_cache = 0;    // pages that are only kept for later
  int64_t waiting_text = 0;    // tokens that no reader has taken
  int64_t request_bodies = 0;  // being received or parsed

  void AddEngine(const EngineMetrics& metrics);
  // Each with the name that /metrics has for it.
  std::vector<std::pair<const char*, int64_t>> Parts() const;
  std::string Text() const;  // one line
};

}  // namespace loopspec::serve

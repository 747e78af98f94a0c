#include "serve/server/memory_use.h"

#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <fstream>

namespace loopspec::serve {

MemoryCounts MemoryCounts::Now() {
  MemoryCounts counts;
  std::ifstream file("/proc/self/statm");
  int64_t all = 0, resident = 0, shared = 0;
  if (file >> all >> resident >> shared) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    counts.files = shared * page;
    counts.anonymous = (resident - shared) * page;
  }
  counts.allocator_free = static_cast<int64_t>(mallinfo2().fordblks);
  return counts;
}

void MemoryUse::AddEngine(const EngineMetrics& metrics) {
  const int64_t held = metrics.pages - metrics.pages_free - metrics.pages_evictable;
  key_values = held * metrics.page_bytes;
  prefix_cache = metrics.pages_evictable * metrics.page_bytes;
  waiting_text = metrics.unread_bytes;
}

std::vector<std::pair<const char*, int64_t>> MemoryUse::Parts() const {
  return {{"anonymous", process.anonymous},
          {"files", process.files},
          {"allocator_free", process.allocator_free},
          {"key_values", key_values},
          {"prefix_cache", prefix_cache},
          {"waiting_text", waiting_text},
          {"request_bodies", request_bodies}};
}

std::string MemoryUse::Text() const {
  const auto mb = [](int64_t bytes) { return static_cast<double>(bytes) * 1e-6; };
  return fmt::format(
      "memory: {:.1f} MB resident and {:.1f} MB of files; keys and values of requests {:.1f}, "
      "cached "
      "prefixes {:.1f}, text that waits for readers {:.1f}, bodies {:.1f}, free in the allocator "
      "{:.1f} MB",
      mb(process.anonymous), mb(process.files), mb(key_values), mb(prefix_cache), mb(waiting_text),
      mb(request_bodies), mb(process.allocator_free));
}

}  // namespace loopspec::serve

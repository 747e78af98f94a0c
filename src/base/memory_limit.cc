#include "base/memory_limit.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"

namespace loopspec {
namespace {

void Lower(MemoryLimit& limit, int64_t bytes, const char* what) {
  if (bytes > 0 && bytes < limit.bytes) limit = {bytes, what};
}

// The number in a file of the cgroup file system; 0 where it holds no number: "max" is no limit.
int64_t CgroupLimit(const char* path) {
  std::ifstream file(path);
  int64_t bytes = 0;
  return file >> bytes ? bytes : 0;
}

}  // namespace

MemoryLimit GetMemoryLimit() {
  MemoryLimit limit = {INT64_MAX, "this process may use"};
  Lower(limit, int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE), "this machine has");
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"})
    Lower(limit, CgroupLimit(path), "this container may use");
  rlimit own{};
  for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
    if (getrlimit(resource, &own) == 0 && own.rlim_cur < static_cast<rlim_t>(INT64_MAX))
      Lower(limit, static_cast<int64_t>(own.rlim_cur), "this process may use");
  }
  return limit;
}

void CheckMemory(double bytes, const std::string& what) {
  const MemoryLimit limit = GetMemoryLimit();
  if (bytes <= static_cast<double>(limit.bytes)) return;
  Fail("{} need {:.1f} GB of memory, {} {:.1f} GB", what, bytes / 1e9, limit.what,
       static_cast<double>(limit.bytes) / 1e9);
}

}  // namespace loopspec

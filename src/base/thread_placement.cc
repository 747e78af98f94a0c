#include "base/thread_placement.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <thread>

namespace loopspec {
namespace {

// A free core of those allowed, -1 if there is none.
int FreeCore(const cpu_set_t& allowed, const cpu_set_t& taken) {
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed) && !CPU_ISSET(core, &taken)) return core;
  }
  return -1;
}

void KeepOn(ThreadPlace& place, int core) {
  if (place.kept_on == core) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  place.kept_on = sched_setaffinity(place.thread, sizeof(set), &set) == 0 ? core : -1;
}

}  // namespace

int UsableCores() {
  cpu_set_t set;
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cores = CPU_COUNT(&set);
  // A container may have a share of time instead of a set of cores: "quota period", or "max period"
  // for no limit.
  std::ifstream limit("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (limit >> quota >> period && quota > 0 && period > 0) {
    cores = std::min(cores, static_cast<int>(std::ceil(quota / period)));
  }
  return std::max(1, cores);
}

pid_t CurrentThread() {
  return static_cast<pid_t>(syscall(SYS_gettid));
}

int CurrentCore() {
  return sched_getcpu();
}

void SpreadOut(std::span<ThreadPlace> threads) {
  cpu_set_t allowed, taken;
  const int own = CurrentCore();
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0 || own < 0 || own >= CPU_SETSIZE) return;
  CPU_ZERO(&taken);
  CPU_SET(own, &taken);
  // Whoever has a core to itself stays there; the others then get what is left.
  for (ThreadPlace& place : threads) {
    const int core = place.kept_on >= 0 ? place.kept_on : place.seen_on;
    place.seen_on = -1;
    if (core < 0 || core >= CPU_SETSIZE || !CPU_ISSET(core, &allowed) || CPU_ISSET(core, &taken))
      continue;
    CPU_SET(core, &taken);
    KeepOn(place, core);
    place.seen_on = core;
  }
  for (ThreadPlace& place : threads) {
    const int core = FreeCore(allowed, taken);
    if (place.seen_on >= 0 || core < 0) continue;
    CPU_SET(core, &taken);
    KeepOn(place, core);
    place.seen_on = core;
  }
}

void LetGo(std::span<ThreadPlace> threads) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  for (ThreadPlace& place : threads) {
    if (place.kept_on >= 0) sched_setaffinity(place.thread, sizeof(allowed), &allowed);
    place.kept_on = -1;
  }
}

void AskForShortTurns() {
  struct {  // the first version of the kernel's struct sched_attr
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;  // nanoseconds; runtime: the length of a turn
  } attributes = {};
  constexpr uint64_t kTurn = 100'000;  // the shortest that Linux grants
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.size = sizeof(attributes);
  attributes.runtime = kTurn;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace loopspec

// Where threads run, as far as a program may ask for it. What the system refuses costs speed and
// nothing else, so no function here fails.
#pragma once

#include <sys/types.h>

#include <span>

namespace loopspec {

// The cores this process may run on (respects affinity and container limits).
int UsableCores();

// A thread and its core.
struct ThreadPlace {
  pid_t thread = 0;
  int seen_on = -1;  // the core on which it ran last; -1: unknown
  int kept_on = -1;  // the only core on which it may run; -1: any
};

// The calling thread and the core that it is on.
pid_t CurrentThread();
int CurrentCore();

// Keeps every thread on a core of its own, off the one that the caller is on. Threads that sleep in
// turns look like one to the system's scheduler: it may leave them together on a core, each waiting
// for the other to leave it, and another process alone on the next.
void SpreadOut(std::span<ThreadPlace> threads);
// The threads may again run wherever the caller may.
void LetGo(std::span<ThreadPlace> threads);

// Asks that the calling thread gets its time on a core in short turns, and soon after it wakes: as
// much as before in all. Linux 6.12 and later.
void AskForShortTurns();

}  // namespace loopspec

// Ctrl-C for commands that have something to show for what is done: the first asks them to finish,
// the second ends the process at once.
#pragma once

#include <string>

namespace loopspec::tools {

inline constexpr int kInterruptedExit = 130;  // as shells give it: 128 + SIGINT

void CatchInterrupt();
// True after the first Ctrl-C; always false where nobody called CatchInterrupt.
bool Interrupted();
// For work of which a part is worth nothing: after the first Ctrl-C throws Error with
// "interrupted:" and `what`, which says in what state the work is left.
void StopIfInterrupted(const std::string& what);

}  // namespace loopspec::tools

// Ctrl-C for commands that have something to show for what is done: the first asks them to finish,
// the second ends the process at once.
#pragma once

namespace loopspec::tools {

inline constexpr int kInterruptedExit = 130;  // as shells give it: 128 + SIGINT

void CatchInterrupt();
// True after the first Ctrl-C; always false where nobody called CatchInterrupt.
bool Interrupted();

}  // namespace loopspec::tools

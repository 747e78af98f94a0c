// Judges a program that a model wrote by its tests. Two Python processes, each in a sandbox of its
// own: one runs the program, the other the tests. The program's process never holds the tests or
// the verdict; arguments and results cross in a closed encoding (python/wire.py).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace loopspec::measure {

struct SandboxLimits {
  int cpu_seconds = 5;        // of processor time, so that a busy machine changes no result
  double wall_seconds = 100;  // for programs that sleep or wait
  size_t memory_bytes = size_t{4} << 30;   // of address space
  size_t file_bytes = size_t{16} << 20;    // of any file it writes
  size_t folder_bytes = size_t{32} << 20;  // of all of them
  int threads = 256;
};

enum class Isolation {
  kSandbox,  // refuses to run where there can be none
  kNone,     // the processes, limits and a clean environment alone
};

// Throws Error with one sentence, why programs cannot be run in a sandbox here and what helps. The
// first call takes a moment.
void NeedSandbox();
// What holds where NeedSandbox does not throw, or "no sandbox".
std::string Describe(Isolation isolation);

struct ProgramTests {
  std::string code;              // Python that raises when the program is wrong
  std::string entry_point = {};  // the program's function that `code` finds as `candidate`
  // Further names that `code` takes from the program. Those that it does not define and that are
  // no builtins need not be named.
  std::vector<std::string> names = {};
};

enum class ProgramOutcome { kPassed, kFailed, kTimeout };

struct ProgramResult {
  ProgramOutcome outcome = ProgramOutcome::kFailed;
  std::string reason;       // empty when passed; else the exception, the signal or the limit
  double cpu_seconds = 0;   // of the program's process
  double wall_seconds = 0;  // of both
};

// Runs `program`, then the tests; passed means that both ran to the end. The program's __name__ is
// not "__main__". Tests may import numpy where it is not installed, as far as those of HumanEval+
// and MBPP+ use it. Throws Error when no process can be started.
ProgramResult RunProgram(std::string_view program, const ProgramTests& tests,
                         const SandboxLimits& limits = {},
                         Isolation isolation = Isolation::kSandbox);

}  // namespace loopspec::measure

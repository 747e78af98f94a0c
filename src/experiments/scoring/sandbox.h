// Runs a program that a model wrote, with tests, where it can do little harm: a Python process
// without network or child processes, with a temporary folder as the only place to write, and with
// limits on time, memory and files.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace loopspec::measure {

struct SandboxLimits {
  int cpu_seconds = 5;       // of processor time, so that a busy machine changes no result
  double wall_seconds = 30;  // for programs that sleep or wait
  size_t memory_bytes = size_t{4} << 30;  // of address space
  size_t file_bytes = size_t{16} << 20;   // of any file it writes
};

// What held in this run. The kernel may refuse each of these to an ordinary user.
struct SandboxIsolation {
  bool network_namespace = false;  // its own empty network
  bool seccomp = false;            // no sockets, processes, tracing, mounts
  bool landlock = false;           // writes only in the temporary folder
};

// "network namespace, seccomp, landlock", or "a clean environment and limits only".
std::string Describe(const SandboxIsolation& isolation);

enum class ProgramOutcome { kPassed, kFailed, kTimeout };

struct ProgramResult {
  ProgramOutcome outcome = ProgramOutcome::kFailed;
  std::string reason;  // empty when passed; else the exception, the signal or the limit
  double cpu_seconds = 0;
  SandboxIsolation isolation;
};

// A Python 3 interpreter: $LOOPSPEC_PYTHON, else the first python3 in the PATH that is a program
// and not a shell script. Throws Error when there is none.
std::filesystem::path FindPython();

// Runs `program`, then `tests` in the same namespace; passed means that both ran to the end. The
// program's __name__ is not "__main__". `tests` may import numpy where it is not installed, as far
// as the tests of HumanEval+ and MBPP+ use it. Throws Error when no process can be started.
ProgramResult RunProgram(std::string_view program, std::string_view tests,
                         const SandboxLimits& limits = {});

}  // namespace loopspec::measure

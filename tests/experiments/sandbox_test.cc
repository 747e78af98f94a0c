#include "experiments/scoring/sandbox.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace loopspec::measure {
namespace {

constexpr const char* kAdd = "def add(a, b):\n    return a + b\n";

std::string ReasonOf(const std::string& program, const std::string& tests = "pass") {
  const ProgramResult result = RunProgram(program, tests);
  EXPECT_EQ(result.outcome, ProgramOutcome::kFailed) << result.reason;
  return result.reason;
}

TEST(Sandbox, PassesWhatIsRight) {
  const ProgramResult result = RunProgram(kAdd, "assert add(2, 3) == 5");
  EXPECT_EQ(result.outcome, ProgramOutcome::kPassed) << result.reason;
  EXPECT_EQ(result.reason, "");
  std::printf("isolation here: %s\n", Describe(result.isolation).c_str());
}

TEST(Sandbox, FailsWithTheReason) {
  EXPECT_EQ(ReasonOf(kAdd, "assert add(2, 3) == 6"), "AssertionError");
  EXPECT_EQ(ReasonOf(kAdd, "assert add(2, 3) == 6, 'wrong'"), "AssertionError: wrong");
  EXPECT_TRUE(ReasonOf("def f(:\n").starts_with("SyntaxError"));
  EXPECT_TRUE(ReasonOf("import no_such_module").starts_with("ModuleNotFoundError"));
  EXPECT_TRUE(ReasonOf("def f(n):\n    return f(n)\nf(1)").starts_with("RecursionError"));
  EXPECT_TRUE(ReasonOf("x = [0] * (1 << 40)").starts_with("MemoryError"));
}

// The tests were not reached, whatever the exit status says.
TEST(Sandbox, DoesNotTrustExits) {
  EXPECT_TRUE(ReasonOf("import sys\nsys.exit(0)").starts_with("SystemExit"));
  EXPECT_EQ(ReasonOf("import os\nos._exit(0)"), "ended with 0 before its tests");
  EXPECT_EQ(ReasonOf("import os, signal\nos.abort()"), "ended by signal 6");
  EXPECT_EQ(ReasonOf("import os\nos.write(3, b'token')\nos._exit(0)"), "token");
}

TEST(Sandbox, StopsWhatTakesTooLong) {
  SandboxLimits limits{.cpu_seconds = 1, .wall_seconds = 60};
  ProgramResult result = RunProgram("while True: pass", "", limits);
  EXPECT_EQ(result.outcome, ProgramOutcome::kTimeout);
  EXPECT_EQ(result.reason, "over 1 s of processor time");
  EXPECT_NEAR(result.cpu_seconds, 1, 0.5);
  limits = {.cpu_seconds = 5, .wall_seconds = 1};
  const auto start = std::chrono::steady_clock::now();
  result = RunProgram("import time\ntime.sleep(100)", "", limits);
  EXPECT_EQ(result.outcome, ProgramOutcome::kTimeout);
  EXPECT_EQ(result.reason, "over 1 s");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  // Closing the channel of results does not end the wait.
  result = RunProgram("import os, time\nos.close(3)\ntime.sleep(100)", "", limits);
  EXPECT_EQ(result.outcome, ProgramOutcome::kTimeout);
  // Nor does ignoring the signal of the processor limit.
  limits = {.cpu_seconds = 1, .wall_seconds = 60};
  result = RunProgram(
      "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass", "", limits);
  EXPECT_EQ(result.outcome, ProgramOutcome::kTimeout);
}

TEST(Sandbox, HasNoNetwork) {
  const ProgramResult probe = RunProgram("pass", "pass");
  if (!probe.isolation.seccomp && !probe.isolation.network_namespace) {
    GTEST_SKIP() << "the kernel allows neither seccomp nor network namespaces here";
  }
  const std::string reason =
      ReasonOf("import socket\nsocket.create_connection(('127.0.0.1', 9), timeout=1)");
  // Refused before any connection: no socket at all, or no loopback in an empty network.
  EXPECT_TRUE(reason.find("PermissionError") != std::string::npos ||
              reason.find("unreachable") != std::string::npos)
      << reason;
}

TEST(Sandbox, StartsNoProcesses) {
  if (!RunProgram("pass", "pass").isolation.seccomp) GTEST_SKIP() << "no seccomp here";
  EXPECT_TRUE(ReasonOf("import os\nos.fork()").starts_with("PermissionError"));
  EXPECT_TRUE(
      ReasonOf("import subprocess\nsubprocess.run(['true'])").starts_with("PermissionError"));
  EXPECT_TRUE(ReasonOf("import os\nos.kill(os.getppid(), 9)").starts_with("PermissionError"));
  const ProgramResult threads =
      RunProgram("import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()", "");
  EXPECT_EQ(threads.outcome, ProgramOutcome::kPassed) << threads.reason;
}

TEST(Sandbox, WritesOnlyInItsFolder) {
  const auto outside = std::filesystem::path(LOOPSPEC_BINARY_DIR) / "sandbox_test_outside.txt";
  std::ofstream(outside) << "as it was";
  const ProgramResult inside =
      RunProgram("open('x.txt', 'w').write('y')\nassert open('x.txt').read() == 'y'", "");
  EXPECT_EQ(inside.outcome, ProgramOutcome::kPassed) << inside.reason;
  if (!inside.isolation.landlock) GTEST_SKIP() << "no landlock here";
  EXPECT_TRUE(ReasonOf("open('" + outside.string() + "', 'w')").starts_with("PermissionError"));
  EXPECT_TRUE(
      ReasonOf("import os\nos.remove('" + outside.string() + "')").starts_with("PermissionError"));
  std::string text;
  std::getline(std::ifstream(outside), text);
  EXPECT_EQ(text, "as it was");
}

TEST(Sandbox, LimitsFiles) {
  EXPECT_TRUE(ReasonOf("open('x', 'wb').write(b'0' * (64 << 20))").find("OSError") == 0);
}

TEST(Sandbox, HasACleanEnvironmentAndIsNotMain) {
  setenv("LOOPSPEC_SECRET", "42", 1);
  const ProgramResult result = RunProgram(
      "import os\nassert 'LOOPSPEC_SECRET' not in os.environ\nassert __name__ != '__main__'",
      "import sys\nassert len(sys.argv) == 1");
  unsetenv("LOOPSPEC_SECRET");
  EXPECT_EQ(result.outcome, ProgramOutcome::kPassed) << result.reason;
}

// As far as the tests of HumanEval+ and MBPP+ go, numpy or not.
TEST(Sandbox, ProvidesWhatTestsNeedOfNumpy) {
  const ProgramResult result =
      RunProgram("def f(): return [1.0, 2.0]",
                 "import numpy as np\n"
                 "assert np.allclose(f(), [1.0, 2.0 + 1e-9], rtol=1e-7, atol=1e-6)\n"
                 "assert not np.allclose(f(), [1.0, 2.1], rtol=1e-7, atol=1e-6)\n"
                 "assert not isinstance(f(), np.ndarray)\n"
                 "assert np.float64 is not None and np.float32 is not None\n");
  EXPECT_EQ(result.outcome, ProgramOutcome::kPassed) << result.reason;
}

TEST(Sandbox, NamesAPythonThatIsNone) {
  setenv("LOOPSPEC_PYTHON", "/no/such/python", 1);
  EXPECT_THROW(FindPython(), Error);
  unsetenv("LOOPSPEC_PYTHON");
  EXPECT_FALSE(FindPython().empty());
}

}  // namespace
}  // namespace loopspec::measure

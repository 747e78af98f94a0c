#include "experiments/scoring/sandbox.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "experiments/scoring/control_group.h"
#include "experiments/scoring/python.h"
#include "experiments/scoring/seccomp_filter.h"
#include "sandbox_run.h"

namespace loopspec::measure {
namespace {

constexpr const char* kAdd = "def add(a, b):\n    return a + b\n";

class Sandbox : public SandboxTest {};
LOOPSPEC_AS_BOTH_USERS(Sandbox);

TEST_P(Sandbox, PassesWhatIsRight) {
  As([] {
    const ProgramResult result = RunProgram(kAdd, {"assert add(2, 3) == 5"});
    EXPECT_EQ(result.outcome, ProgramOutcome::kPassed) << result.reason;
    EXPECT_EQ(result.reason, "");
    std::printf("here: %s\n", Describe(Isolation::kSandbox).c_str());
  });
}

TEST_P(Sandbox, FailsWithTheReason) {
  As([] {
    EXPECT_EQ(ReasonOf(kAdd, {"assert add(2, 3) == 6"}), "AssertionError");
    EXPECT_EQ(ReasonOf(kAdd, {"assert add(2, 3) == 6, 'wrong'"}), "AssertionError: wrong");
    EXPECT_EQ(ReasonOf(kAdd, {"add(2, 'x')"}).substr(0, 10), "TypeError:");
    EXPECT_TRUE(ReasonOf("def f(:\n").starts_with("SyntaxError"));
    EXPECT_TRUE(ReasonOf("import no_such_module").starts_with("ModuleNotFoundError"));
    EXPECT_TRUE(ReasonOf("def f(n):\n    return f(n)\nf(1)").starts_with("RecursionError"));
    EXPECT_TRUE(ReasonOf(kAdd, {"def f(:\n"}).starts_with("SyntaxError"));
    EXPECT_EQ(ReasonOf("\xff\xfe"), ReasonOf("\xff\xfe"));  // no text at all
  });
}

TEST_P(Sandbox, StopsWhatTakesTooLong) {
  As([] {
    SandboxLimits limits{.cpu_seconds = 1, .wall_seconds = 120};
    ProgramResult result = RunProgram("while True: pass", {""}, limits);
    EXPECT_EQ(result.outcome, ProgramOutcome::kTimeout);
    EXPECT_EQ(result.reason, "over 1 s of processor time");
    EXPECT_GE(result.cpu_seconds, 0.5);
    EXPECT_LT(result.cpu_seconds, 3);
    result = RunProgram("def f():\n    while True: pass", {"f()"}, limits);
    EXPECT_EQ(result.reason, "over 1 s of processor time");
    // Ignoring the signal of the limit does not help.
    result =
        RunProgram("import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
                   {""}, limits);
    EXPECT_EQ(result.outcome, ProgramOutcome::kTimeout);
    limits = {.cpu_seconds = 5, .wall_seconds = 2};
    const auto start = std::chrono::steady_clock::now();
    result = RunProgram("import time\ntime.sleep(100)", {""}, limits);
    EXPECT_EQ(result.outcome, ProgramOutcome::kTimeout);
    EXPECT_EQ(result.reason, "over 2 s");
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
    // Nor does it end the wait when the program does not listen.
    result = RunProgram("import time\ndef f(): time.sleep(100)", {"f()"}, limits);
    EXPECT_EQ(result.outcome, ProgramOutcome::kTimeout);
  });
}

TEST_P(Sandbox, WritesInItsFolder) {
  As([] {
    const ProgramResult result = RunProgram(
        "import os, tempfile\nopen('x.txt', 'w').write('y')\nassert open('/tmp/x.txt').read() == "
        "'y'\n"
        "os.mkdir('a')\nos.rename('x.txt', 'a/x')\nassert os.listdir('a') == ['x']\n"
        "with tempfile.TemporaryDirectory() as folder: open(folder + '/z', 'w').write('z')\n"
        "assert __name__ != '__main__'",
        {"import sys\nassert len(sys.argv) == 1"});
    EXPECT_EQ(result.outcome, ProgramOutcome::kPassed) << result.reason;
  });
}

// As far as the tests of HumanEval+ and MBPP+ go, numpy or not.
TEST_P(Sandbox, ProvidesWhatTestsNeedOfNumpy) {
  As([] {
    const ProgramResult result =
        RunProgram("def f(): return [1.0, 2.0]",
                   {"import numpy as np\n"
                    "assert np.allclose(f(), [1.0, 2.0 + 1e-9], rtol=1e-7, atol=1e-6)\n"
                    "assert not np.allclose(f(), [1.0, 2.1], rtol=1e-7, atol=1e-6)\n"
                    "assert not isinstance(f(), np.ndarray)\n"
                    "assert np.float64 is not None and np.float32 is not None\n"});
    EXPECT_EQ(result.outcome, ProgramOutcome::kPassed) << result.reason;
  });
}

// What programs commonly import works with the system calls that are allowed.
TEST_P(Sandbox, HasTheStandardLibrary) {
  As([] {
    const ProgramResult result = RunProgram(
        "import math, re, collections, itertools, functools, heapq, bisect, string, random, "
        "datetime, "
        "time, json, copy, operator, typing, decimal, fractions, statistics, hashlib, threading, "
        "queue, os, sys, io, tempfile, struct, textwrap, calendar, enum, dataclasses, cmath, "
        "array, "
        "unicodedata, concurrent.futures\n"
        "with concurrent.futures.ThreadPoolExecutor(4) as pool:\n"
        "    total = sum(pool.map(lambda x: x * x, range(10)))\n"
        "time.sleep(0.001)\nnow = datetime.datetime.now()\nrandom.random()\nos.urandom(4)\n"
        "hashlib.sha256(b'x').hexdigest()\nos.getpid()\nos.cpu_count()\nprint('x', flush=True)\n"
        "def f(): return total\n",
        {"assert f() == 285"});
    EXPECT_EQ(result.outcome, ProgramOutcome::kPassed) << result.reason;
  });
}

// The names of the tests are theirs; what is left comes from the program.
TEST_P(Sandbox, TestsTakeNamesFromTheProgram) {
  As([] {
    EXPECT_EQ(
        RunProgram("def sum(a, b): return a - b", {"assert sum(3, 1) == 2", "", {"sum"}}).reason,
        "");
    EXPECT_TRUE(
        ReasonOf("def sum(a): return 0", {"assert sum([3]) == 0"}).starts_with("AssertionError"));
    EXPECT_EQ(RunProgram("def f(): return 1\ndef g(): return 2",
                         {"def h(): return f() + g()\nassert h() == 3 and candidate() == 1", "f"})
                  .reason,
              "");
  });
}

TEST(SandboxOff, RunsWithoutOne) {
  const auto run = [](const std::string& program, const ProgramTests& tests,
                      const SandboxLimits& limits = {}) {
    return RunProgram(program, tests, limits, Isolation::kNone);
  };
  EXPECT_EQ(run(kAdd, {"assert add(2, 3) == 5"}).outcome, ProgramOutcome::kPassed);
  EXPECT_EQ(run(kAdd, {"assert add(2, 3) == 6"}).reason, "AssertionError");
  EXPECT_EQ(run("while True: pass", {""}, {.cpu_seconds = 1}).reason, "over 1 s of processor time");
  EXPECT_EQ(run("import os\nopen('x', 'w').write('y')\nassert os.getcwd() != '/'", {"pass"}).reason,
            "");
  EXPECT_EQ(Describe(Isolation::kNone), "no sandbox");
}

// Each in a new process, which has not looked for a sandbox yet.
class SandboxRefusal : public testing::Test {
 protected:
  SandboxRefusal() { testing::FLAGS_gtest_death_test_style = "threadsafe"; }

  [[noreturn]] static void Say() {
    try {
      RunProgram("pass", {"pass"});
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      std::exit(2);
    }
    std::exit(0);
  }
  // `refusal`; a program that was built without libseccomp says that first, whatever else is
  // missing.
  static std::string Expected(const char* refusal) {
    return HasSeccomp() ? refusal
                        : "this program was built without libseccomp .install the package "
                          "libseccomp-dev and build it again.; --allow-unsandboxed-code";
  }
  // A bwrap that says `words` and fails.
  static void UseBwrap(const std::string& words) {
    std::string folder =
        (std::filesystem::temp_directory_path() / "loopspec-bwrap-XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) std::exit(3);
    std::ofstream(folder + "/bwrap") << "#!/bin/sh\necho '" << words << "' >&2\nexit 1\n";
    chmod(folder.c_str(), 0755);
    chmod((folder + "/bwrap").c_str(), 0755);
    setenv("PATH", (folder + ":/usr/bin:/bin").c_str(), 1);
  }
};

TEST_F(SandboxRefusal, WithoutBubblewrap) {
  EXPECT_EXIT(
      {
        setenv("PATH", "/nowhere", 1);
        Say();
      },
      testing::ExitedWithCode(2),
      Expected(
          "bwrap is not in the PATH .install the package bubblewrap.; --allow-unsandboxed-code"));
}

TEST_F(SandboxRefusal, WhereNamespacesAreForbidden) {
  EXPECT_EXIT(
      {
        UseBwrap("bwrap: No permissions to create new namespace");
        Say();
      },
      testing::ExitedWithCode(2),
      Expected("bwrap: No permissions to create new namespace; allow user namespaces: sysctl"));
}

TEST_F(SandboxRefusal, WithoutThePythonThatWasNamed) {
  EXPECT_EXIT(
      {
        UseBwrap("not reached");
        setenv("LOOPSPEC_PYTHON", "/no/such/python", 1);
        Say();
      },
      testing::ExitedWithCode(2), Expected("^LOOPSPEC_PYTHON=/no/such/python: not a program\n$"));
}

TEST(SandboxPython, NamesAPythonThatIsNone) {
  setenv("LOOPSPEC_PYTHON", "/no/such/python", 1);
  EXPECT_THROW(FindPython(), Error);
  unsetenv("LOOPSPEC_PYTHON");
  EXPECT_FALSE(FindPython().empty());
  EXPECT_FALSE(DescribePython(FindPython()).folders.empty());
}

TEST(SandboxControlGroup, GoesWhenItIsDone) {
  std::vector<std::string> files;
  {
    const ControlGroup group(1 << 28, 64);
    if (!group.holds()) GTEST_SKIP() << "no control group may be made here";
    files = group.joins();
    // What a killed process left behind goes as well.
    const auto parent = std::filesystem::path(files[0]).parent_path().parent_path();
    const auto left = parent / fmt::format("loopspec-{}-1", 1 << 23);  // beyond any process
    ASSERT_TRUE(std::filesystem::create_directory(left));
    { const ControlGroup next(1 << 28, 64); }
    EXPECT_FALSE(std::filesystem::exists(left));
    for (const std::string& file : files) EXPECT_EQ(access(file.c_str(), W_OK), 0) << file;
  }
  for (const std::string& file : files) EXPECT_NE(access(file.c_str(), F_OK), 0) << file;
}

}  // namespace
}  // namespace loopspec::measure

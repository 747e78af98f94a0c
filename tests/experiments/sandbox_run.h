// Runs the body of a test as root and as an ordinary user, and what tests of the sandbox share.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>

#include "experiments/scoring/sandbox.h"

namespace loopspec::measure {

enum class RunAs { kRoot, kOrdinaryUser };

// A test of the sandbox, skipped with the reason where there can be none.
class SandboxTest : public testing::TestWithParam<RunAs> {
 protected:
  // Runs `body` as the user of the parameter: in a process of its own where that is not the user of
  // the tests. Skips the test where that cannot be.
  void As(const std::function<void()>& body);
};

std::string NameOf(const testing::TestParamInfo<RunAs>& info);

#define LOOPSPEC_AS_BOTH_USERS(suite) \
  INSTANTIATE_TEST_SUITE_P(As, suite, testing::Values(RunAs::kRoot, RunAs::kOrdinaryUser), NameOf)

// The reason why a program failed; empty, with a failure of the test, when it did not.
std::string ReasonOf(const std::string& program, const ProgramTests& tests = {"pass"},
                     const SandboxLimits& limits = {});

// What became of the attempts of an attack: `program` makes them with
//   attempt("name", lambda: ...)
// and has os, sys, ctypes, syscall(NAME, ...) and the numbers of system calls as NAME. The result
// is "name: done" or "name: the exception" for each, with "; " between.
std::string Attempts(const std::string& program, const SandboxLimits& limits = {});
// Fails the test where one of `count` attempts has come to something.
void ExpectNothingDone(const std::string& attempts, int count);

// A folder of the user with a file that everybody may read and write.
class OutsideFile {
 public:
  OutsideFile();
  ~OutsideFile();
  const std::string& path() const { return path_; }
  void ExpectUntouched() const;

 private:
  std::filesystem::path folder_;
  std::string path_;
};

// A process of the user that the sandbox runs as, which waits to be hurt.
class Victim {
 public:
  Victim();
  ~Victim();
  pid_t pid() const { return pid_; }
  void ExpectUnhurt() const;

 private:
  std::string Condition() const;  // limits, priority, affinity
  pid_t pid_ = -1;
  std::string before_;
};

}  // namespace loopspec::measure

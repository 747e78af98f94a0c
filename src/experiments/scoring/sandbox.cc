#include "experiments/scoring/sandbox.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "experiments/scoring/child_process.h"
#include "experiments/scoring/control_group.h"
#include "experiments/scoring/descriptor.h"
#include "experiments/scoring/isolate.h"
#include "experiments/scoring/python.h"

namespace loopspec::measure {
namespace {

namespace fs = std::filesystem;
using Clock = ChildProcess::Clock;

constexpr std::string_view kPassed = "passed", kFailed = "failed:", kError = "error:";
constexpr int kMostVerdict = 16384;               // bytes
constexpr auto kGrace = std::chrono::seconds(2);  // for a program whose tests are done
constexpr int kKilled = 128 + SIGKILL;

// A folder that goes with all that is in it, for programs without a sandbox.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "loopspec-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) {
      Fail("{}: cannot make a temporary folder ({})", pattern, std::strerror(errno));
    }
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

// Starts the two sides of a test.
class Sides {
 public:
  Sides(Isolation isolation, const SandboxLimits& limits) : limits_(limits) {
    if (isolation == Isolation::kSandbox) {
      parts_ = &NeedSandboxParts();
      python_ = parts_->python;
    } else {
      python_ = DescribePython(FindPython());
      folder_.emplace();
    }
  }

  ChildProcess StartProgram(std::string_view program, const Pipe& requests, const Pipe& replies,
                            const ControlGroup& group) const {
    ChildPlan plan = PlanOf(ProgramScript());
    const Descriptor setup =
        SetupOf({{"program", program}, {"threads", parts_ == nullptr ? 0 : limits_.threads}});
    plan.descriptors = {requests.read.get(), replies.write.get(), setup.get()};
    plan.cpu_seconds = limits_.cpu_seconds;
    plan.joins = group.joins();
    return Start(std::move(plan), limits_.folder_bytes);
  }

  ChildProcess StartTests(const ProgramTests& tests, const Pipe& requests, const Pipe& replies,
                          const Pipe& verdict) const {
    ChildPlan plan = PlanOf(TestsScript());
    const Descriptor setup = SetupOf(
        {{"tests", tests.code}, {"entry_point", tests.entry_point}, {"names", tests.names}});
    plan.descriptors = {requests.write.get(), replies.read.get(), setup.get(), verdict.write.get()};
    plan.memory_bytes = 2 * limits_.memory_bytes;  // results and what is expected
    return Start(std::move(plan), 0);
  }

 private:
  ChildPlan PlanOf(std::string script) const {
    ChildPlan plan;
    plan.arguments = {python_.program.string(), "-s", "-S", "-B", "-c", std::move(script)};
    plan.folder = parts_ != nullptr ? kSandboxFolder : folder_->path();
    plan.environment = PythonEnvironment(plan.folder);
    plan.memory_bytes = limits_.memory_bytes;
    plan.file_bytes = limits_.file_bytes;
    return plan;
  }

  Descriptor SetupOf(Json setup) const {
    setup["paths"] = python_.packages;
    return MakeMemoryFile(setup.dump(-1, ' ', true, Json::error_handler_t::replace));
  }

  ChildProcess Start(ChildPlan plan, size_t writable_bytes) const {
    if (parts_ == nullptr) return ChildProcess(std::move(plan));
    const Descriptor filter = Isolate(*parts_, writable_bytes, plan);
    return ChildProcess(std::move(plan));
  }

  const SandboxLimits& limits_;
  const SandboxParts* parts_ = nullptr;  // nullptr: no sandbox
  Python python_;
  std::optional<TemporaryFolder> folder_;
};

void Judge(const std::string& verdict, const ChildEnding& tests, const ChildEnding& program,
           const SandboxLimits& limits, ProgramResult& result) {
  // The kernel counts ticks for the limit, of which a busy machine can give too many; what is
  // killed for its memory has rarely used half of the time.
  const bool out_of_time = !program.killed && program.status == kKilled &&
                           program.cpu_seconds >= 0.5 * limits.cpu_seconds;
  if (verdict == kPassed && tests.status == 0) {
    result.outcome = ProgramOutcome::kPassed;
  } else if (verdict.starts_with(kError)) {
    Fail("a program cannot be tested: {}", verdict.substr(kError.size()));
  } else if (out_of_time) {
    result.outcome = ProgramOutcome::kTimeout;
    result.reason = fmt::format("over {} s of processor time", limits.cpu_seconds);
  } else if (tests.killed) {
    result.outcome = ProgramOutcome::kTimeout;
    result.reason = fmt::format("over {} s", limits.wall_seconds);
  } else if (verdict.starts_with(kFailed)) {
    result.reason = verdict.substr(kFailed.size());
    if (!program.killed && program.status != 0)
      result.reason += fmt::format(" (the program's process: status {})", program.status);
  } else {
    result.reason = fmt::format("the tests ended with status {} and no verdict", tests.status);
  }
}

}  // namespace

void NeedSandbox() {
  NeedSandboxParts();
}

std::string Describe(Isolation isolation) {
  if (isolation == Isolation::kNone) return "no sandbox";
  const SandboxLimits limits;
  const ControlGroup group(limits.memory_bytes, limits.threads);
  return std::string("bubblewrap, seccomp") + (group.holds() ? ", control group" : "");
}

ProgramResult RunProgram(std::string_view program, const ProgramTests& tests,
                         const SandboxLimits& limits, Isolation isolation) {
  const Sides sides(isolation, limits);
  const auto start = Clock::now();
  const auto deadline =
      start + std::chrono::microseconds(static_cast<int64_t>(limits.wall_seconds * 1e6));
  std::optional<ControlGroup> group;
  if (isolation == Isolation::kSandbox) {
    group.emplace(limits.memory_bytes, limits.threads);
  } else {
    group.emplace();
  }
  Pipe requests = MakePipe(), replies = MakePipe(), verdict = MakePipe();
  ChildProcess program_side = sides.StartProgram(program, requests, replies, *group);
  ChildProcess tests_side = sides.StartTests(tests, requests, replies, verdict);
  // Each side must see the end of the other.
  requests = {};
  replies = {};
  verdict.write.Close();

  const std::string text = ReadPipe(verdict.read.get(), kMostVerdict, deadline).text;
  const ChildEnding tests_ending = tests_side.Finish(deadline);
  const ChildEnding program_ending = program_side.Finish(
      tests_ending.killed ? Clock::now() : std::min(deadline, Clock::now() + kGrace));
  ProgramResult result;
  result.cpu_seconds = program_ending.cpu_seconds;
  result.wall_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  Judge(text, tests_ending, program_ending, limits, result);
  return result;
}

}  // namespace loopspec::measure

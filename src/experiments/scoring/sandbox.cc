#include "experiments/scoring/sandbox.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <vector>

#include "base/error.h"
#include "experiments/scoring/isolate.h"
#include "experiments/scoring/strings.h"

namespace loopspec::measure {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Reads what it runs from files whose names no import can find. Results go to descriptor 3; the
// token at the end proves that the tests were reached, whatever the program did to its own exit.
constexpr std::string_view kDriver = R"python(
import os
import sys


def provide_numpy():
    try:
        import numpy
    except ImportError:
        import types

        def close(a, b, rtol, atol):
            if isinstance(a, (list, tuple)) or isinstance(b, (list, tuple)):
                if not isinstance(a, (list, tuple)):
                    a = [a] * len(b)
                if not isinstance(b, (list, tuple)):
                    b = [b] * len(a)
                if len(a) != len(b):
                    raise ValueError("operands could not be broadcast together")
                return all(close(x, y, rtol, atol) for x, y in zip(a, b))
            if not isinstance(a, (int, float, complex)) or not isinstance(b, (int, float, complex)):
                raise TypeError("not a number")
            return a == b or abs(a - b) <= atol + rtol * abs(b)

        numpy = types.ModuleType("numpy")
        numpy.ndarray = type("ndarray", (), {})
        numpy.float64 = type("float64", (float,), {})
        numpy.float32 = type("float32", (float,), {})
        numpy.allclose = lambda a, b, rtol=1e-5, atol=1e-8: close(a, b, rtol, atol)
        sys.modules["numpy"] = numpy


def main(write, leave, token):
    names = {"__name__": "answer"}
    try:
        for path in ("program.txt", "tests.txt"):
            with open(path, encoding="utf-8") as file:
                code = compile(file.read(), path, "exec")
            if path == "tests.txt":
                provide_numpy()
            exec(code, names)
    except BaseException as error:
        text = type(error).__name__
        try:
            if str(error):
                text += ": " + str(error)
        except BaseException:
            pass
        write(3, text[:500].encode("utf-8", "replace"))
        leave(1)
    write(3, token.encode())
    leave(0)


main(os.write, os._exit, sys.argv.pop())
)python";

// A folder that goes with all that is in it.
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
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void WriteFile(const fs::path& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.flush()) Fail("{}: cannot be written", path.string());
}

std::string MakeToken() {
  std::random_device random;
  std::string token = "token ";
  for (int i = 0; i < 4; ++i) token += fmt::format("{:08x}", random());
  return token;
}

// Never returns. Everything it needs was made before the fork.
[[noreturn]] void RunChild(const SandboxLimits& limits, const char* folder, int report,
                           char* const* arguments, char* const* environment) {
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int null = open("/dev/null", O_RDWR);
  for (int target = 0; target < 3; ++target) dup2(null, target);
  if (report == 3) {
    fcntl(3, F_SETFD, 0);
  } else {
    dup2(report, 3);
  }
  close_range(4, ~0U, 0);
  if (chdir(folder) != 0) _exit(126);
  const SandboxIsolation isolation = IsolateProcess(limits, folder);
  const char facts = static_cast<char>('0' + (isolation.network_namespace ? 1 : 0) +
                                       (isolation.seccomp ? 2 : 0) + (isolation.landlock ? 4 : 0));
  if (write(3, &facts, 1) != 1) _exit(126);
  execve(arguments[0], arguments, environment);
  _exit(127);
}

// What the child wrote until it closed the pipe or the time was over.
std::string ReadReport(int pipe, Clock::time_point deadline) {
  std::string text;
  std::array<char, 1024> buffer;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return text;
    pollfd wait{pipe, POLLIN, 0};
    if (poll(&wait, 1, static_cast<int>(left)) <= 0) continue;
    const ssize_t got = read(pipe, buffer.data(), buffer.size());
    if (got <= 0) return text;
    if (text.size() < 4096) text.append(buffer.data(), static_cast<size_t>(got));
  }
}

struct Ending {
  int status = 0;
  bool killed = false;  // by us, since its time was over
  double cpu_seconds = 0;
};

Ending Finish(pid_t child, Clock::time_point deadline) {
  Ending ending;
  rusage usage{};
  pid_t ended = 0;
  while ((ended = wait4(child, &ending.status, WNOHANG, &usage)) == 0 && Clock::now() < deadline) {
    usleep(1000);
  }
  kill(-child, SIGKILL);
  if (ended == 0) {
    ending.killed = true;
    kill(child, SIGKILL);
    wait4(child, &ending.status, 0, &usage);
  }
  for (const timeval& time : {usage.ru_utime, usage.ru_stime}) {
    ending.cpu_seconds +=
        static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  }
  return ending;
}

bool IsProgram(const fs::path& path) {
  if (access(path.c_str(), X_OK) != 0 || !fs::is_regular_file(path)) return false;
  std::ifstream file(path, std::ios::binary);
  std::array<char, 2> start{};
  return file.read(start.data(), 2) && !(start[0] == '#' && start[1] == '!');
}

void Judge(const Ending& ending, const std::string& report, const std::string& token,
           const SandboxLimits& limits, ProgramResult& result) {
  const int status = ending.status;
  const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  const bool out_of_time =
      signal == SIGXCPU || (signal == SIGKILL && ending.cpu_seconds >= limits.cpu_seconds);
  if (ending.killed || out_of_time) {
    result.outcome = ProgramOutcome::kTimeout;
    result.reason = out_of_time ? fmt::format("over {} s of processor time", limits.cpu_seconds)
                                : fmt::format("over {} s", limits.wall_seconds);
  } else if (signal != 0) {
    result.reason = fmt::format("ended by signal {}", signal);
  } else if (WEXITSTATUS(status) == 0 && report == token) {
    result.outcome = ProgramOutcome::kPassed;
  } else if (WEXITSTATUS(status) >= 126 && report.empty()) {
    Fail("python3 cannot be started in the sandbox");
  } else {
    result.reason = report.empty()
                        ? fmt::format("ended with {} before its tests", WEXITSTATUS(status))
                        : report;
  }
}

}  // namespace

std::string Describe(const SandboxIsolation& isolation) {
  std::string text;
  const auto add = [&text](bool holds, std::string_view what) {
    if (holds) text += (text.empty() ? "" : ", ") + std::string(what);
  };
  add(isolation.network_namespace, "network namespace");
  add(isolation.seccomp, "seccomp");
  add(isolation.landlock, "landlock");
  return text.empty() ? "a clean environment and limits only" : text;
}

fs::path FindPython() {
  if (const char* given = std::getenv("LOOPSPEC_PYTHON"); given != nullptr && *given != '\0') {
    if (!IsProgram(given)) Fail("LOOPSPEC_PYTHON={}: not a program", given);
    return given;
  }
  const char* path = std::getenv("PATH");
  const std::string folders = std::string(path == nullptr ? "" : path) + ":/usr/bin:/bin";
  for (const std::string_view folder : Split(folders, ":")) {
    if (folder.empty() || folder[0] != '/') continue;
    const fs::path candidate = fs::path(folder) / "python3";
    if (IsProgram(candidate)) return candidate;
  }
  Fail("python3 is not in the PATH; programs that a model wrote cannot be tested without it");
}

ProgramResult RunProgram(std::string_view program, std::string_view tests,
                         const SandboxLimits& limits) {
  const TemporaryFolder folder;
  WriteFile(folder.path() / "program.txt", program);
  WriteFile(folder.path() / "tests.txt", tests);
  WriteFile(folder.path() / "loopspec_driver.py", kDriver);

  const std::string token = MakeToken();
  std::vector<std::string> arguments = {FindPython().string(), "-s", "-B", "loopspec_driver.py",
                                        token};
  std::vector<std::string> environment = {"PATH=/usr/bin:/bin",
                                          "HOME=" + folder.path().string(),
                                          "TMPDIR=" + folder.path().string(),
                                          "LANG=C.UTF-8",
                                          "PYTHONHASHSEED=0",
                                          "OPENBLAS_NUM_THREADS=1",
                                          "OMP_NUM_THREADS=1"};
  const auto pointers = [](std::vector<std::string>& strings) {
    std::vector<char*> result;
    for (std::string& s : strings) result.push_back(s.data());
    result.push_back(nullptr);
    return result;
  };
  const std::vector<char*> argv = pointers(arguments), envp = pointers(environment);
  const std::string where = folder.path().string();

  std::array<int, 2> pipe{};
  if (pipe2(pipe.data(), O_CLOEXEC) != 0) Fail("no pipe: {}", std::strerror(errno));
  const auto deadline =
      Clock::now() + std::chrono::microseconds(static_cast<int64_t>(limits.wall_seconds * 1e6));
  const pid_t child = fork();
  if (child == 0) RunChild(limits, where.c_str(), pipe[1], argv.data(), envp.data());
  close(pipe[1]);
  if (child < 0) {
    close(pipe[0]);
    Fail("no process for a program: {}", std::strerror(errno));
  }
  std::string report = ReadReport(pipe[0], deadline);
  close(pipe[0]);
  const Ending ending = Finish(child, deadline);

  ProgramResult result;
  result.cpu_seconds = ending.cpu_seconds;
  if (!report.empty()) {
    const int facts = report[0] - '0';
    result.isolation = {(facts & 1) != 0, (facts & 2) != 0, (facts & 4) != 0};
    report.erase(0, 1);
  }
  Judge(ending, report, token, limits, result);
  return result;
}

}  // namespace loopspec::measure

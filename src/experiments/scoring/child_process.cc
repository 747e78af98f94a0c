#include "experiments/scoring/child_process.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace loopspec::measure {
namespace {

constexpr int kFirst = 3;         // descriptor of the child
constexpr uid_t kNobody = 65534;  // on every distribution

void LimitChild(int resource, rlim_t value) {
  const rlimit limit{value, value};
  setrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
}

// The calls from here on are made between fork and exec: async-signal-safe, no allocation.

bool JoinGroups(const ChildPlan& plan) {
  for (const std::string& path : plan.joins) {
    const int file = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    const bool joined = file >= 0 && write(file, "0", 1) == 1;  // 0 is the one that writes
    if (file >= 0) close(file);
    if (!joined) return false;
  }
  return true;
}

bool PlaceDescriptors(const ChildPlan& plan) {
  const int count = static_cast<int>(plan.descriptors.size());
  const int above = kFirst + count;
  // First out of the way of the numbers that they are to have.
  std::array<int, 16> moved{};
  if (static_cast<size_t>(count) > moved.size()) return false;
  const int null = open("/dev/null", O_RDWR);
  const int output = plan.output >= 0 ? plan.output : null;
  const int moved_output = fcntl(output, F_DUPFD, above);
  const int moved_null = fcntl(null, F_DUPFD, above);
  if (moved_output < 0 || moved_null < 0) return false;
  for (int i = 0; i < count; ++i) {
    moved[static_cast<size_t>(i)] = fcntl(plan.descriptors[static_cast<size_t>(i)], F_DUPFD, above);
    if (moved[static_cast<size_t>(i)] < 0) return false;
  }
  bool placed =
      dup2(moved_null, 0) == 0 && dup2(moved_output, 1) == 1 && dup2(moved_output, 2) == 2;
  for (int i = 0; i < count; ++i)
    placed = placed && dup2(moved[static_cast<size_t>(i)], kFirst + i) == kFirst + i;
  return placed && close_range(static_cast<unsigned>(above), ~0U, 0) == 0;
}

bool GiveUpRoot() {
  return setgroups(0, nullptr) == 0 && setresgid(kNobody, kNobody, kNobody) == 0 &&
         setresuid(kNobody, kNobody, kNobody) == 0;
}

[[noreturn]] void RunChildProcess(const ChildPlan& plan, char* const* arguments,
                                  char* const* environment, pid_t parent) {
  setsid();
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (!JoinGroups(plan) || !PlaceDescriptors(plan) || chdir(plan.folder.c_str()) != 0) _exit(126);
  LimitChild(RLIMIT_CORE, 0);
  LimitChild(RLIMIT_NOFILE, 64);
  if (plan.memory_bytes > 0) LimitChild(RLIMIT_AS, plan.memory_bytes);
  if (plan.file_bytes > 0) LimitChild(RLIMIT_FSIZE, plan.file_bytes);
  if (plan.cpu_seconds > 0) LimitChild(RLIMIT_CPU, static_cast<rlim_t>(plan.cpu_seconds));
  if (plan.as_nobody && !GiveUpRoot()) _exit(126);
  // After the change of user, which would clear it.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(126);
  execve(arguments[0], arguments, environment);
  _exit(127);
}

int MillisecondsUntil(ChildProcess::Clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - ChildProcess::Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30));
}

}  // namespace

ChildProcess::ChildProcess(ChildPlan plan) {
  const auto pointers = [](std::vector<std::string>& strings) {
    std::vector<char*> result;
    for (std::string& s : strings) result.push_back(s.data());
    result.push_back(nullptr);
    return result;
  };
  const std::vector<char*> arguments = pointers(plan.arguments);
  const std::vector<char*> environment = pointers(plan.environment);
  const pid_t parent = getpid();
  child_ = fork();
  if (child_ == 0) RunChildProcess(plan, arguments.data(), environment.data(), parent);
  if (child_ < 0) Fail("no process for a program: {}", std::strerror(errno));
}

ChildProcess::~ChildProcess() {
  if (child_ > 0) Finish(Clock::now());
}

ChildEnding ChildProcess::Finish(Clock::time_point deadline) {
  ChildEnding ending;
  rusage usage{};
  int status = 0;
  pid_t ended = 0;
  while ((ended = wait4(child_, &status, WNOHANG, &usage)) == 0 && Clock::now() < deadline) {
    usleep(500);
  }
  kill(-child_, SIGKILL);  // what it left in its group
  if (ended == 0) {
    ending.killed = true;
    kill(child_, SIGKILL);
    while (wait4(child_, &status, 0, &usage) < 0 && errno == EINTR) {
    }
  }
  child_ = -1;
  ending.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  for (const timeval& time : {usage.ru_utime, usage.ru_stime}) {
    ending.cpu_seconds +=
        static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  }
  return ending;
}

PipeText ReadPipe(int pipe, size_t most, ChildProcess::Clock::time_point deadline) {
  PipeText result;
  std::array<char, 1024> buffer;
  while (result.text.size() < most) {
    pollfd wait{pipe, POLLIN, 0};
    const int ready = poll(&wait, 1, MillisecondsUntil(deadline));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return result;
    const ssize_t got =
        read(pipe, buffer.data(), std::min(buffer.size(), most - result.text.size()));
    if (got <= 0) {
      result.closed = true;
      return result;
    }
    result.text.append(buffer.data(), static_cast<size_t>(got));
  }
  return result;
}

}  // namespace loopspec::measure

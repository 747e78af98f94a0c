#include "sandbox_run.h"

#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"

namespace loopspec::measure {
namespace {

namespace fs = std::filesystem;

constexpr uid_t kOrdinary = 61234, kNobody = 65534;  // any will do that is not root's
constexpr int kSkipped = 77;

bool BecomeUser(uid_t user) {
  return setgroups(0, nullptr) == 0 && setresgid(user, user, user) == 0 &&
         setresuid(user, user, user) == 0;
}

std::string WhyNoSandbox() {
  try {
    NeedSandbox();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The numbers of this machine, so that attacks hold on each.
std::string SystemCallNumbers() {
  std::string text;
#define NUMBER(name) text += fmt::format("{} = {}\n", #name, SYS_##name);
  NUMBER(ptrace)
  NUMBER(process_vm_readv)
  NUMBER(process_vm_writev)
  NUMBER(kill)
  NUMBER(tkill)
  NUMBER(tgkill)
  NUMBER(rt_sigqueueinfo)
  NUMBER(pidfd_open)
  NUMBER(pidfd_send_signal)
  NUMBER(pidfd_getfd)
  NUMBER(prlimit64)
  NUMBER(setrlimit)
  NUMBER(setpriority)
  NUMBER(sched_setaffinity)
  NUMBER(sched_setscheduler)
  NUMBER(ioprio_set)
  NUMBER(shmget)
  NUMBER(shmat)
  NUMBER(semget)
  NUMBER(msgget)
  NUMBER(mq_open)
  NUMBER(memfd_create)
  NUMBER(socket)
  NUMBER(socketpair)
  NUMBER(connect)
  NUMBER(bind)
  NUMBER(keyctl)
  NUMBER(add_key)
  NUMBER(request_key)
  NUMBER(userfaultfd)
  NUMBER(io_uring_setup)
  NUMBER(bpf)
  NUMBER(perf_event_open)
  NUMBER(unshare)
  NUMBER(setns)
  NUMBER(mount)
  NUMBER(umount2)
  NUMBER(pivot_root)
  NUMBER(chroot)
  NUMBER(open_tree)
  NUMBER(move_mount)
  NUMBER(fsopen)
  NUMBER(clone)
  NUMBER(clone3)
  NUMBER(setsid)
  NUMBER(setpgid)
  NUMBER(fchmod)
  NUMBER(fchmodat)
  NUMBER(fchownat)
  NUMBER(utimensat)
  NUMBER(setxattr)
  NUMBER(fsetxattr)
  NUMBER(mknodat)
  NUMBER(linkat)
  NUMBER(symlinkat)
  NUMBER(prctl)
  NUMBER(seccomp)
  NUMBER(personality)
  NUMBER(reboot)
  NUMBER(kexec_load)
  NUMBER(init_module)
  NUMBER(swapon)
  NUMBER(clock_settime)
  NUMBER(sethostname)
  NUMBER(inotify_init1)
  NUMBER(fanotify_init)
  NUMBER(open_by_handle_at)
  NUMBER(name_to_handle_at)
  NUMBER(execveat)
  NUMBER(vmsplice)
  NUMBER(splice)
  NUMBER(copy_file_range)
  NUMBER(sendfile)
  NUMBER(setuid)
  NUMBER(setresuid)
  NUMBER(capset)
  NUMBER(kcmp)
  NUMBER(epoll_create1)
  NUMBER(eventfd2)
  NUMBER(signalfd4)
  NUMBER(timerfd_create)
  NUMBER(mlockall)
  NUMBER(mbind)
  NUMBER(move_pages)
  NUMBER(acct)
  NUMBER(syslog)
  NUMBER(landlock_create_ruleset)
#undef NUMBER
  return text;
}

constexpr const char* kAttempts = R"python(
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
done = []

def attempt(name, what):
    try:
        what()
    except BaseException as error:
        done.append(f"{name}: {type(error).__name__} {getattr(error, 'errno', '') or ''}".strip())
    else:
        done.append(f"{name}: done")

def syscall(number, *arguments):
    if libc.syscall(number, *arguments) == -1:
        raise OSError(ctypes.get_errno(), "refused")

def report():
    return "; ".join(done)
)python";

}  // namespace

std::string NameOf(const testing::TestParamInfo<RunAs>& info) {
  return info.param == RunAs::kRoot ? "Root" : "OrdinaryUser";
}

void SandboxTest::As(const std::function<void()>& body) {
  const bool root = geteuid() == 0;
  if (GetParam() == RunAs::kRoot && !root) GTEST_SKIP() << "the tests do not run as root";
  if ((GetParam() == RunAs::kRoot) == root) {
    if (const std::string why = WhyNoSandbox(); !why.empty()) GTEST_SKIP() << why;
    body();
    return;
  }
  std::fflush(nullptr);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int status = kSkipped;
    if (!BecomeUser(kOrdinary) || chdir("/") != 0) {
      std::printf("cannot become an ordinary user\n");
    } else if (const std::string why = WhyNoSandbox(); !why.empty()) {
      std::printf("%s\n", why.c_str());
    } else {
      body();
      status = HasFailure() ? 1 : 0;
    }
    std::fflush(nullptr);
    _exit(status);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kSkipped) {
    GTEST_SKIP() << "an ordinary user cannot have a sandbox here; the reason stands above";
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
      << "as an ordinary user; what failed stands above";
}

std::string ReasonOf(const std::string& program, const ProgramTests& tests,
                     const SandboxLimits& limits) {
  const ProgramResult result = RunProgram(program, tests, limits);
  EXPECT_EQ(result.outcome, ProgramOutcome::kFailed) << result.reason << "\n" << program;
  return result.reason;
}

std::string Attempts(const std::string& program, const SandboxLimits& limits) {
  const std::string reason =
      ReasonOf(kAttempts + SystemCallNumbers() + program, {"assert False, report()"}, limits);
  constexpr std::string_view kBefore = "AssertionError: ";
  EXPECT_TRUE(reason.starts_with(kBefore)) << reason;
  return reason.substr(std::min(reason.size(), kBefore.size()));
}

void ExpectNothingDone(const std::string& attempts, int count) {
  int found = 0;
  for (size_t at = 0; (at = attempts.find(": ", at)) != std::string::npos; ++at) ++found;
  EXPECT_EQ(found, count) << attempts;
  EXPECT_EQ(attempts.find(": done"), std::string::npos) << attempts;
}

OutsideFile::OutsideFile() {
  std::string pattern = (fs::temp_directory_path() / "loopspec-outside-XXXXXX").string();
  EXPECT_NE(mkdtemp(pattern.data()), nullptr);
  folder_ = pattern;
  path_ = (folder_ / "file.txt").string();
  std::ofstream(path_) << "as it was";
  chmod(folder_.c_str(), 0777);
  chmod(path_.c_str(), 0666);
}

OutsideFile::~OutsideFile() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

void OutsideFile::ExpectUntouched() const {
  EXPECT_EQ(ReadText(path_), "as it was");
  struct stat status {};
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0666u);
  EXPECT_GT(status.st_mtime, 1'000'000'000);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

Victim::Victim() {
  pid_ = fork();
  if (pid_ == 0) {
    if (geteuid() == 0 && !BecomeUser(kNobody)) _exit(1);
    for (;;) pause();
  }
  EXPECT_GT(pid_, 0);
  before_ = Condition();
}

Victim::~Victim() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

std::string Victim::Condition() const {
  cpu_set_t processors{};
  sched_getaffinity(pid_, sizeof processors, &processors);
  return ReadText(fmt::format("/proc/{}/limits", pid_)) +
         fmt::format("{} {}", getpriority(PRIO_PROCESS, static_cast<id_t>(pid_)),
                     CPU_COUNT(&processors));
}

void Victim::ExpectUnhurt() const {
  int status = 0;
  EXPECT_EQ(waitpid(pid_, &status, WNOHANG), 0) << "the process has ended";
  EXPECT_EQ(Condition(), before_);
}

}  // namespace loopspec::measure

#include "experiments/scoring/seccomp_filter.h"

#include "base/error.h"

#ifdef LOOPSPEC_SECCOMP
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "experiments/scoring/descriptor.h"
#endif

namespace loopspec::measure {

#ifdef LOOPSPEC_SECCOMP

namespace {

// x86-64 has older calls beside the newer ones (open, openat), which aarch64 has alone: a name that
// the machine does not have is left out. Not there, and so refused: every kind of process, socket,
// signal to others, mount, namespace, tracing, key, shared memory and change of owner, mode, times
// or attributes of files.
constexpr const char* kAllowed[] = {
    // Starting and ending. bwrap starts Python with the filter in force.
    "execve", "exit", "exit_group", "arch_prctl", "set_tid_address", "set_robust_list", "rseq",
    "rt_sigreturn", "restart_syscall",
    // Memory.
    "brk", "mmap", "munmap", "mprotect", "mremap", "madvise",
    // Threads, which are made by clone alone: clone3 hides its flags from a filter.
    "futex", "sched_yield", "sched_getaffinity", "gettid", "get_robust_list", "membarrier",
    "getcpu",
    // Files: the sandbox has one folder where anything can be written.
    "read", "readv", "pread64", "preadv", "write", "writev", "pwrite64", "pwritev", "lseek", "open",
    "openat", "close", "close_range", "dup", "dup2", "dup3", "fcntl", "pipe", "pipe2", "access",
    "faccessat", "faccessat2", "stat", "lstat", "fstat", "newfstatat", "statx", "statfs", "fstatfs",
    "readlink", "readlinkat", "getdents", "getdents64", "getcwd", "chdir", "fchdir", "mkdir",
    "mkdirat", "rmdir", "unlink", "unlinkat", "rename", "renameat", "renameat2", "ftruncate",
    "truncate", "fsync", "fdatasync", "umask", "flock", "fadvise64", "poll", "ppoll", "select",
    "pselect6",
    // Its own signals and clocks.
    "rt_sigaction", "rt_sigprocmask", "rt_sigpending", "sigaltstack", "pause", "alarm", "setitimer",
    "getitimer", "nanosleep", "clock_nanosleep", "clock_gettime", "clock_getres", "gettimeofday",
    "time", "times", "getrusage",
    // Questions.
    "getpid", "getppid", "getpgrp", "getpgid", "getsid", "getuid", "geteuid", "getgid", "getegid",
    "getgroups", "getresuid", "getresgid", "uname", "sysinfo", "getrandom", "getrlimit"};

constexpr uint64_t kNewNamespaces = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
                                    CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
// Whether it is a terminal, and flags of a descriptor.
constexpr std::array<uint64_t, 4> kControls = {TCGETS, FIOCLEX, FIONCLEX, FIONBIO};

class Filter {
 public:
  Filter() : context_(seccomp_init(SCMP_ACT_ERRNO(ENOSYS)), seccomp_release) {
    if (!context_) Fail("libseccomp cannot make a filter");
  }

  // With `conditions` on the arguments, all of which must hold.
  template <typename... Condition>
  void Allow(const char* name, Condition... conditions) {
    const int number = seccomp_syscall_resolve_name(name);
    if (number < 0) return;  // unknown to libseccomp, or not of this machine
    const int result = seccomp_rule_add(context_.get(), SCMP_ACT_ALLOW, number,
                                        sizeof...(conditions), conditions...);
    if (result != 0) Fail("libseccomp refuses the call {}: {}", name, std::strerror(-result));
  }

  std::string Export() const {
    const Descriptor file = MakeMemoryFile("");
    const int result = seccomp_export_bpf(context_.get(), file.get());
    if (result != 0) Fail("libseccomp cannot write its filter: {}", std::strerror(-result));
    std::string bytes(static_cast<size_t>(lseek(file.get(), 0, SEEK_END)), '\0');
    if (pread(file.get(), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
      Fail("the filter of libseccomp cannot be read back");
    }
    return bytes;
  }

 private:
  std::unique_ptr<void, decltype(&seccomp_release)> context_;
};

}  // namespace

bool HasSeccomp() {
  return true;
}

std::string MakeSeccompFilter() {
  Filter filter;
  for (const char* name : kAllowed) filter.Allow(name);
  constexpr uint64_t kLooked = CLONE_THREAD | kNewNamespaces;
  filter.Allow("clone", SCMP_A0(SCMP_CMP_MASKED_EQ, kLooked, uint64_t{CLONE_THREAD}));
  for (const uint64_t control : kControls) filter.Allow("ioctl", SCMP_A1(SCMP_CMP_EQ, control));
  filter.Allow("prlimit64", SCMP_A0(SCMP_CMP_EQ, 0));  // its own limits
  return filter.Export();
}

#else

bool HasSeccomp() {
  return false;
}

std::string MakeSeccompFilter() {
  Fail("this program was built without libseccomp");
}

#endif

}  // namespace loopspec::measure

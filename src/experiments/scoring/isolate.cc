#include "experiments/scoring/isolate.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <iterator>

namespace loopspec::measure {
namespace {

void Limit(int resource, rlim_t value, rlim_t beyond = 0) {
  const rlimit limit{value, value + beyond};
  setrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
}

// Reading is allowed everywhere, writing only beneath `folder`.
bool RestrictFiles(const char* folder) {
  constexpr __u64 kRead =
      LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
  constexpr __u64 kWrite = LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR |
                           LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_CHAR |
                           LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |
                           LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO |
                           LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_MAKE_SYM;
  landlock_ruleset_attr attributes{};
  attributes.handled_access_fs = kRead | kWrite;
  const int rules = static_cast<int>(
      syscall(SYS_landlock_create_ruleset, &attributes, sizeof attributes.handled_access_fs, 0));
  if (rules < 0) return false;
  bool ok = true;
  const struct {
    const char* path;
    __u64 access;
  } places[] = {{"/", kRead}, {folder, kRead | kWrite}};
  for (const auto& place : places) {
    landlock_path_beneath_attr beneath{};
    beneath.allowed_access = place.access;
    beneath.parent_fd = open(place.path, O_PATH | O_CLOEXEC);
    ok = ok && beneath.parent_fd >= 0 &&
         syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &beneath, 0) == 0;
    if (beneath.parent_fd >= 0) close(beneath.parent_fd);
  }
  ok = ok && syscall(SYS_landlock_restrict_self, rules, 0) == 0;
  close(rules);
  return ok;
}

#if defined(__x86_64__)
constexpr __u32 kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr __u32 kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr __u32 kArchitecture = 0;
#endif

// Threads stay allowed, since numerical libraries start them; processes do not, so that killing
// the one process ends everything. clone3 hides its flags from the filter, so it is refused as
// unknown, and the C library falls back on clone.
bool FilterSystemCalls() {
  if (kArchitecture == 0) return false;
  constexpr __u32 kRefuse = SECCOMP_RET_ERRNO | EPERM;
  constexpr __u32 kUnknown = SECCOMP_RET_ERRNO | ENOSYS;
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, field))
#define REFUSE(number, how) \
  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1), BPF_STMT(BPF_RET | BPF_K, (how))
  sock_filter filter[] = {
    LOAD(arch),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    LOAD(nr),
#if defined(__x86_64__)
    // The x32 calls have numbers of their own.
    BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, kRefuse),
    REFUSE(SYS_fork, kRefuse),
    REFUSE(SYS_vfork, kRefuse),
#endif
    REFUSE(SYS_socket, kRefuse),
    REFUSE(SYS_socketpair, kRefuse),
    REFUSE(SYS_connect, kRefuse),
    REFUSE(SYS_bind, kRefuse),
    REFUSE(SYS_ptrace, kRefuse),
    REFUSE(SYS_process_vm_readv, kRefuse),
    REFUSE(SYS_process_vm_writev, kRefuse),
    REFUSE(SYS_mount, kRefuse),
    REFUSE(SYS_umount2, kRefuse),
    REFUSE(SYS_unshare, kRefuse),
    REFUSE(SYS_setns, kRefuse),
    REFUSE(SYS_setsid, kRefuse),
    REFUSE(SYS_setpgid, kRefuse),
    REFUSE(SYS_kill, kRefuse),
    REFUSE(SYS_bpf, kRefuse),
    REFUSE(SYS_io_uring_setup, kRefuse),
    REFUSE(SYS_clone3, kUnknown),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3),
    LOAD(args[0]),
    BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0),
    BPF_STMT(BPF_RET | BPF_K, kRefuse),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
#undef REFUSE
#undef LOAD
  sock_fprog program{static_cast<unsigned short>(std::size(filter)), filter};
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

}  // namespace

SandboxIsolation IsolateProcess(const SandboxLimits& limits, const char* folder) {
  SandboxIsolation isolation;
  Limit(RLIMIT_CORE, 0);
  Limit(RLIMIT_AS, limits.memory_bytes);
  Limit(RLIMIT_FSIZE, limits.file_bytes);
  Limit(RLIMIT_NOFILE, 64);
  // A signal of its own at the limit, so that it can be told from others.
  Limit(RLIMIT_CPU, static_cast<rlim_t>(limits.cpu_seconds), 1);
  // A user namespace gives the right to an empty network namespace.
  isolation.network_namespace = unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0;
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0) {
    isolation.landlock = RestrictFiles(folder);
    isolation.seccomp = FilterSystemCalls();
  }
  return isolation;
}

}  // namespace loopspec::measure

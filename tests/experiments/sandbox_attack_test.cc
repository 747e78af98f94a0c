// Attacks on what lies outside of the sandbox, each as root and as an ordinary user.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "sandbox_run.h"

namespace loopspec::measure {
namespace {

class SandboxAttack : public SandboxTest {};
LOOPSPEC_AS_BOTH_USERS(SandboxAttack);

int CountSharedMemory() {
  std::ifstream file("/proc/sysvipc/shm");
  int lines = 0;
  for (std::string line; std::getline(file, line);) lines += line.find(" 19890604 ") != line.npos;
  return lines;
}

// Whether any process is left that descends from this one, which takes in orphans.
bool HasDescendants() {
  for (int i = 0; i < 2000; ++i) {
    const pid_t ended = waitpid(-1, nullptr, WNOHANG);
    if (ended < 0) return false;
    if (ended == 0) usleep(5000);
  }
  return true;
}

TEST_P(SandboxAttack, EmptiesNoFile) {
  As([] {
    const OutsideFile outside;
    const std::string attempts = Attempts("path = '" + outside.path() + R"python('
attempt("truncate", lambda: os.truncate(path, 0))
attempt("O_TRUNC", lambda: os.open(path, os.O_RDONLY | os.O_TRUNC))
attempt("write", lambda: open(path, "w"))
attempt("append", lambda: open(path, "a"))
attempt("remove", lambda: os.remove(path))
attempt("rename", lambda: os.rename(path, path + "x"))
attempt("create", lambda: os.open(path + "x", os.O_CREAT | os.O_WRONLY))
attempt("system truncate", lambda: os.truncate(sys.executable, 0))
attempt("system O_TRUNC", lambda: os.open(os.__file__, os.O_RDONLY | os.O_TRUNC))
attempt("create in the root", lambda: os.mkdir("/x"))
attempt("create in dev", lambda: open("/dev/x", "w"))
attempt("create in etc", lambda: open("/etc/x", "w"))
attempt("create in usr", lambda: open("/usr/x", "w"))
)python");
    ExpectNothingDone(attempts, 13);
    outside.ExpectUntouched();
  });
}

TEST_P(SandboxAttack, ChangesNoModesTimesOrAttributes) {
  As([] {
    const OutsideFile outside;
    ExpectNothingDone(Attempts("path = '" + outside.path() + R"python('
for what in (path, os.__file__, "/dev/null"):
    attempt("chmod", lambda: os.chmod(what, 0o777))
    attempt("chown", lambda: os.chown(what, os.getuid(), os.getgid()))
    attempt("utime", lambda: os.utime(what, (1, 1)))
    attempt("setxattr", lambda: os.setxattr(what, "user.x", b"x"))
)python"),
                      12);
    outside.ExpectUntouched();
  });
}

TEST_P(SandboxAttack, SignalsNoProcess) {
  As([] {
    const Victim victim;
    ExpectNothingDone(Attempts(fmt::format("victim, parent = {}, {}\n", victim.pid(), getpid()) +
                               R"python(
for who in (victim, parent, os.getppid(), -1, 1):
    attempt("kill", lambda: syscall(kill, who, 9))
    attempt("tkill", lambda: syscall(tkill, who, 9))
    attempt("tgkill", lambda: syscall(tgkill, who, who, 9))
    attempt("rt_sigqueueinfo", lambda: syscall(rt_sigqueueinfo, who, 9, ctypes.create_string_buffer(128)))
    attempt("pidfd_open", lambda: syscall(pidfd_open, who, 0))
attempt("pidfd_send_signal", lambda: syscall(pidfd_send_signal, 3, 9, None, 0))
attempt("os.kill", lambda: os.kill(victim, 9))
attempt("os.killpg", lambda: os.killpg(victim, 9))
)python"),
                      28);
    victim.ExpectUnhurt();
  });
}

TEST_P(SandboxAttack, ChangesNoLimitsAffinityOrPriority) {
  As([] {
    const Victim victim;
    ExpectNothingDone(Attempts(fmt::format("victim, parent = {}, {}\n", victim.pid(), getpid()) +
                               R"python(
import resource
for who in (victim, parent):
    attempt("prlimit", lambda: resource.prlimit(who, resource.RLIMIT_NOFILE, (1, 1)))
    attempt("affinity", lambda: os.sched_setaffinity(who, {0}))
    attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, who, 19))
    attempt("scheduler", lambda: os.sched_setscheduler(who, os.SCHED_IDLE, os.sched_param(0)))
    attempt("ioprio", lambda: syscall(ioprio_set, 1, who, 7))
attempt("all of the user", lambda: os.setpriority(os.PRIO_USER, os.getuid(), 19))
attempt("raise", lambda: resource.setrlimit(resource.RLIMIT_CPU, (1000, 1000)))
attempt("raise memory", lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40)))
)python"),
                      13);
    victim.ExpectUnhurt();
  });
}

TEST_P(SandboxAttack, LooksIntoNoProcess) {
  As([] {
    const Victim victim;
    ExpectNothingDone(Attempts(fmt::format("victim, parent = {}, {}\n", victim.pid(), getpid()) +
                               R"python(
for who in (victim, parent, os.getppid()):
    attempt("attach", lambda: syscall(ptrace, 16, who, 0, 0))
    attempt("seize", lambda: syscall(ptrace, 0x4206, who, 0, 0))
    attempt("process_vm_readv", lambda: syscall(process_vm_readv, who, 0, 0, 0, 0, 0))
    attempt("process_vm_writev", lambda: syscall(process_vm_writev, who, 0, 0, 0, 0, 0))
    attempt("pidfd_getfd", lambda: syscall(pidfd_getfd, 3, 0, 0))
    attempt("kcmp", lambda: syscall(kcmp, who, who, 0, 0, 0))
    attempt("mem", lambda: open(f"/proc/{who}/mem", "rb"))
    attempt("environ", lambda: open(f"/proc/{who}/environ", "rb"))
    attempt("descriptors", lambda: os.listdir(f"/proc/{who}/fd"))
attempt("proc", lambda: os.listdir("/proc"))
attempt("sysctl", lambda: open("/proc/sys/kernel/core_pattern", "w"))
)python"),
                      29);
    victim.ExpectUnhurt();
  });
}

TEST_P(SandboxAttack, LeavesNoSharedMemory) {
  As([] {
    const int before = CountSharedMemory();
    ExpectNothingDone(Attempts(R"python(
attempt("shmget", lambda: syscall(shmget, 19890604, 1 << 20, 0o1666))
attempt("semget", lambda: syscall(semget, 19890604, 1, 0o1666))
attempt("msgget", lambda: syscall(msgget, 19890604, 0o1666))
attempt("mq_open", lambda: syscall(mq_open, b"x", os.O_CREAT | os.O_RDWR, 0o666, None))
attempt("memfd", lambda: os.memfd_create("x"))
attempt("dev shm", lambda: open("/dev/shm/loopspec-attack", "w"))
attempt("shm_open", lambda: __import__("_posixshmem").shm_open("/loopspec-attack", os.O_CREAT | os.O_RDWR))
attempt("keyctl", lambda: syscall(keyctl, 0, -3, 1))
attempt("add_key", lambda: syscall(add_key, b"user", b"x", b"x", 1, -4))
)python"),
                      9);
    EXPECT_EQ(CountSharedMemory(), before);
    EXPECT_NE(access("/dev/shm/loopspec-attack", F_OK), 0);
  });
}

TEST_P(SandboxAttack, FillsNoDisk) {
  As([] {
    const std::string attempts = Attempts(R"python(
written = 0
def fill():
    global written
    for i in range(300):
        with open(f"f{i}", "wb", 0) as file:
            written += file.write(b"0" * (1 << 20))
attempt("300 MB", fill)
done.append(f"written {written >> 20} MiB")
def large():
    for i in range(300):
        os.remove(f"f{i}") if os.path.exists(f"f{i}") else None
    with open("large", "wb", 0) as file:
        for i in range(20):
            file.write(b"0" * (1 << 20))
attempt("a large file", large)
)python");
    EXPECT_NE(attempts.find("300 MB: OSError 28; written 3"), std::string::npos) << attempts;
    EXPECT_NE(attempts.find("a large file: OSError"), std::string::npos) << attempts;
  });
}

TEST_P(SandboxAttack, ReadsNothingOfTheUser) {
  As([] {
    const OutsideFile outside;
    const char* home = std::getenv("HOME");
    ExpectNothingDone(Attempts(fmt::format("outside, home = '{}', '{}'\n", outside.path(),
                                           home == nullptr ? "/root" : home) +
                               R"python(
attempt("file", lambda: open(outside).read())
attempt("home", lambda: os.listdir(home))
for place in ("/root", "/home", "/etc/passwd", "/etc/shadow", "/etc/hostname", "/var", "/run", "/sys", "/proc", "/mnt", "/opt", "/srv", "/boot"):
    attempt(place, lambda: os.stat(place))
attempt("tty", lambda: open("/dev/tty"))
attempt("mem", lambda: open("/dev/mem"))
attempt("pts", lambda: os.listdir("/dev/pts"))
)python"),
                      18);
    // Nothing but the system, so that there is no further place to look.
    EXPECT_EQ(Attempts(R"python(
def show(folder, *known):
    done.append(f"{folder}: {' '.join(sorted(set(os.listdir(folder)) - set(known)))}")
show("/", "lib64")
show("/dev")
show("/tmp")
show("/etc", "alternatives", "ld.so.cache")
)python"),
              "/: bin dev etc lib tmp usr; /dev: full null random urandom zero; /tmp: ; /etc: ");
  });
}

TEST_P(SandboxAttack, InheritsNothing) {
  As([] {
    const OutsideFile outside;
    const int file = open(outside.path().c_str(), O_RDWR);  // not closed on exec
    ASSERT_GE(file, 0);
    setenv("LOOPSPEC_SECRET", "42", 1);
    EXPECT_EQ(Attempts(R"python(
for number in range(1024):
    try:
        os.fstat(number)
        done.append(str(number))
    except OSError:
        pass
done.append(" ".join(sorted(os.environ)))
)python"),
              "0; 1; 2; 3; 4; HOME LANG OMP_NUM_THREADS OPENBLAS_NUM_THREADS PATH PWD "
              "PYTHONHASHSEED TMPDIR");
    unsetenv("LOOPSPEC_SECRET");
    close(file);
    outside.ExpectUntouched();
  });
}

TEST_P(SandboxAttack, HasNoNetworkAndNoSockets) {
  As([] {
    ExpectNothingDone(Attempts(R"python(
import socket as sockets
attempt("tcp", lambda: sockets.create_connection(("127.0.0.1", 9), timeout=1))
attempt("udp", lambda: sockets.socket(sockets.AF_INET, sockets.SOCK_DGRAM))
attempt("unix", lambda: sockets.socket(sockets.AF_UNIX))
attempt("pair", lambda: sockets.socketpair())
attempt("netlink", lambda: sockets.socket(16, 3, 0))
attempt("raw", lambda: syscall(socket, 1, 1, 0))
attempt("abstract", lambda: syscall(connect, 3, b"\x01\x00\x00x", 4))
)python"),
                      7);
  });
}

TEST_P(SandboxAttack, StartsNoProcesses) {
  As([] {
    ExpectNothingDone(Attempts(R"python(
import subprocess
attempt("fork", lambda: os._exit(0) if os.fork() == 0 else None)
attempt("forkpty", lambda: os._exit(0) if os.forkpty()[0] == 0 else None)
attempt("subprocess", lambda: subprocess.run(["true"]))
attempt("posix_spawn", lambda: os.posix_spawn("/usr/bin/true", ["true"], {}))
attempt("system", lambda: 1 / 0 if os.system("true") != 0 else None)
attempt("clone", lambda: syscall(clone, 17, 0, 0, 0, 0))
attempt("clone in a new namespace", lambda: syscall(clone, 0x10000000 | 0x10000, 0, 0, 0, 0))
attempt("clone3", lambda: syscall(clone3, ctypes.create_string_buffer(88), 88))
attempt("execveat", lambda: syscall(execveat, -100, b"/usr/bin/true", None, None, 0))
attempt("setsid", lambda: os.setsid())
attempt("setpgid", lambda: os.setpgid(0, 0))
)python"),
                      11);
    const ProgramResult threads = RunProgram(
        "import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()", {"pass"});
    EXPECT_EQ(threads.outcome, ProgramOutcome::kPassed) << threads.reason;
  });
}

// Everything that is on no list of what Python needs to compute.
TEST_P(SandboxAttack, MakesNoOtherSystemCalls) {
  As([] {
    const std::string attempts = Attempts(R"python(
refused, others = 0, []
for name in ("userfaultfd io_uring_setup bpf perf_event_open unshare setns mount umount2 pivot_root chroot open_tree move_mount fsopen "
             "fchmod fchmodat fchownat utimensat setxattr fsetxattr mknodat linkat symlinkat prctl seccomp personality reboot kexec_load "
             "init_module swapon clock_settime sethostname inotify_init1 fanotify_init open_by_handle_at name_to_handle_at vmsplice splice "
             "copy_file_range sendfile setuid setresuid capset epoll_create1 eventfd2 signalfd4 timerfd_create mlockall mbind move_pages "
             "acct syslog landlock_create_ruleset setrlimit request_key shmat").split():
    if libc.syscall(globals()[name], 0, 0, 0, 0, 0, 0) == -1 and ctypes.get_errno() == 38:
        refused += 1
    else:
        others.append(name)
done.append(f"{refused} {others}")
attempt("TIOCSTI", lambda: __import__("fcntl").ioctl(0, 0x5412, b"x"))
)python");
    EXPECT_EQ(attempts, "55 []; TIOCSTI: OSError 38");
  });
}

TEST_P(SandboxAttack, BombsAreBounded) {
  As([] {
    EXPECT_TRUE(ReasonOf("x = [0] * (1 << 40)").starts_with("MemoryError"));
    EXPECT_TRUE(
        ReasonOf("x = []\nwhile True: x.append(bytearray(1 << 26))").starts_with("MemoryError"));
    // Threads of the smallest stacks that every chip allows, which the limit of memory does not
    // stop.
    const std::string threads = Attempts(R"python(
import threading, time
threading.stack_size(131072)
count = 0
def start():
    global count
    while count < 5000:
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        count += 1
attempt("threads", start)
done.append(f"{'few' if count < 1000 else 'many'}")
)python");
    EXPECT_EQ(threads, "threads: RuntimeError; few");
    // Endless output, to where it is and to the channel of results.
    SandboxLimits limits{.cpu_seconds = 1, .wall_seconds = 120};
    ProgramResult result = RunProgram("while True: print('x' * 1000)", {"pass"}, limits);
    EXPECT_EQ(result.outcome, ProgramOutcome::kTimeout) << result.reason;
    limits = {.cpu_seconds = 5, .wall_seconds = 60};
    result = RunProgram("import os\nwhile True: os.write(4, b'x' * 65536)", {"pass"}, limits);
    EXPECT_NE(result.outcome, ProgramOutcome::kPassed) << result.reason;
  });
}

TEST_P(SandboxAttack, NothingOutlivesTheRun) {
  As([] {
    ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
    // One that goes on by itself and does not let go when it is told to.
    const ProgramResult result = RunProgram(
        "import os, threading, time\nos._exit = lambda code: time.sleep(1000)\n"
        "threading.Thread(target=time.sleep, args=(1000,)).start()\n",
        {"pass"});
    EXPECT_EQ(result.outcome, ProgramOutcome::kPassed) << result.reason;
    EXPECT_FALSE(HasDescendants());
    // The one that runs it dies.
    const pid_t runner = fork();
    if (runner == 0) {
      RunProgram("import time\ntime.sleep(1000)", {"pass"}, {.wall_seconds = 1000});
      _exit(0);
    }
    usleep(1'000'000);
    EXPECT_EQ(kill(runner, SIGKILL), 0);
    EXPECT_FALSE(HasDescendants());
    prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
  });
}

}  // namespace
}  // namespace loopspec::measure

#include "experiments/scoring/isolate.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "experiments/scoring/seccomp_filter.h"
#include "experiments/scoring/strings.h"

namespace loopspec::measure {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void Refuse(const std::string& why) {
  Fail(
      "programs that a model wrote are run in a sandbox only, and there can be none here: {}; "
      "--allow-unsandboxed-code runs them without one",
      why);
}

std::string FindBubblewrap() {
  const char* path = std::getenv("PATH");
  for (const std::string_view folder : Split(path == nullptr ? "" : path, ":")) {
    if (folder.empty() || folder[0] != '/') continue;
    const std::string candidate = std::string(folder) + "/bwrap";
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  Refuse("bwrap is not in the PATH (install the package bubblewrap)");
}

bool IsWithin(const fs::path& path, const fs::path& folder) {
  const auto [end, _] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return end == folder.end();
}

// Folders of an interpreter that does not come with the system, to be shown at their own places.
// One that holds the user's home as well would show all of it.
std::vector<std::string> FoldersOutsideOfSystem(const Python& python) {
  const char* home = std::getenv("HOME");
  std::vector<std::string> folders;
  for (const fs::path& given : python.folders) {
    const fs::path folder = given.lexically_normal();
    if (IsWithin(folder, "/usr")) continue;
    if (folder == "/" || (home != nullptr && *home == '/' && IsWithin(home, folder))) {
      Refuse(
          fmt::format("{} is installed in {}, which holds more than Python (name another with "
                      "LOOPSPEC_PYTHON)",
                      python.program.string(), folder.string()));
    }
    if (std::find(folders.begin(), folders.end(), folder.string()) == folders.end())
      folders.push_back(folder.string());
  }
  return folders;
}

// The folders of the system: links into /usr on most, folders of their own on others.
void ShowSystem(std::vector<std::string>& arguments) {
  const auto add = [&](std::initializer_list<std::string> more) {
    arguments.insert(arguments.end(), more);
  };
  add({"--ro-bind", "/usr", "/usr"});
  for (const char* folder : {"/bin", "/lib", "/lib64"}) {
    std::error_code error;
    if (fs::is_symlink(folder, error)) {
      add({"--symlink", fs::read_symlink(folder, error).string(), folder});
    } else if (fs::is_directory(folder, error)) {
      add({"--ro-bind", folder, folder});
    }
  }
  // Where libraries are, and links to chosen ones.
  for (const char* file : {"/etc/ld.so.cache", "/etc/alternatives"})
    add({"--ro-bind-try", file, file});
  // Not --dev, which comes with a /dev/shm of any size. There is no /proc either.
  for (const char* device : {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"})
    add({"--dev-bind", device, device});
}

std::string WhatHelps(const std::string& words) {
  if (words.find("Can't find source path") != std::string::npos) {
    return "name a Python that every user may read with LOOPSPEC_PYTHON";
  }
  return "allow user namespaces: sysctl kernel.unprivileged_userns_clone=1, on Ubuntu "
         "kernel.apparmor_restrict_unprivileged_userns=0, in a container --privileged";
}

// Starts Python in a sandbox, which shows whether the kernel allows it all.
void Try(const SandboxParts& parts) {
  ChildPlan plan;
  plan.arguments = {parts.python.program.string(), "-s", "-S", "-B", "-c", "import json"};
  plan.environment = PythonEnvironment(kSandboxFolder);
  Pipe pipe = MakePipe();
  plan.output = pipe.write.get();
  const Descriptor filter = Isolate(parts, 1 << 20, plan);
  const auto deadline = ChildProcess::Clock::now() + std::chrono::seconds(60);
  ChildProcess child(std::move(plan));
  pipe.write.Close();
  const std::string words = ReadPipe(pipe.read.get(), 1000, deadline).text;
  const ChildEnding ending = child.Finish(deadline);
  if (ending.status == 0 && !ending.killed) return;
  const std::string_view line = Strip(std::string_view(words).substr(0, words.find('\n')));
  Refuse(fmt::format("bwrap ends with status {} ({}; {})", ending.status,
                     line.empty() ? "it says nothing" : line, WhatHelps(words)));
}

SandboxParts MakeParts() {
  if (!HasSeccomp()) {
    Refuse(
        "this program was built without libseccomp (install the package libseccomp-dev and "
        "build it again)");
  }
  SandboxParts parts{FindBubblewrap(), MakeSeccompFilter(), DescribePython(FindPython())};
  Try(parts);
  return parts;
}

}  // namespace

const SandboxParts& NeedSandboxParts() {
  static const SandboxParts parts = MakeParts();  // tried again when it has thrown
  return parts;
}

Descriptor Isolate(const SandboxParts& parts, size_t writable_bytes, ChildPlan& plan) {
  Descriptor filter = MakeMemoryFile(parts.filter);
  plan.descriptors.push_back(filter.get());
  std::vector<std::string> arguments = {
      parts.bwrap,     "--unshare-user",       "--unshare-pid", "--unshare-ipc", "--unshare-uts",
      "--unshare-net", "--unshare-cgroup-try", "--uid",         "65534",         "--gid",
      "65534",         "--hostname",           "sandbox",       "--cap-drop",    "ALL",
      "--new-session", "--die-with-parent",    "--as-pid-1"};
  const auto add = [&](std::initializer_list<std::string> more) {
    arguments.insert(arguments.end(), more);
  };
  ShowSystem(arguments);
  for (const std::string& folder : FoldersOutsideOfSystem(parts.python))
    add({"--ro-bind", folder, folder});
  if (writable_bytes > 0) {
    add({"--size", std::to_string(writable_bytes), "--tmpfs", kSandboxFolder});
  } else {
    add({"--dir", kSandboxFolder});
  }
  // The root is a file system in memory of its own, and may be written until it is closed.
  add({"--remount-ro", "/", "--chdir", kSandboxFolder, "--seccomp",
       std::to_string(2 + plan.descriptors.size()), "--"});
  plan.arguments.insert(plan.arguments.begin(), arguments.begin(), arguments.end());
  plan.as_nobody = geteuid() == 0;
  plan.folder = "/";
  return filter;
}

}  // namespace loopspec::measure

#include "experiments/scoring/control_group.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "base/error.h"
#include "experiments/scoring/strings.h"

namespace loopspec::measure {
namespace {

namespace fs = std::filesystem;

// Where the trees are mounted: by controller, the newer kind under "".
std::map<std::string, fs::path> FindMounts() {
  std::map<std::string, fs::path> mounts;
  std::ifstream file("/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    // 36 35 98:0 /root /mount/point options ... - type source super,options
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream front(line.substr(0, dash)), back(line.substr(dash + 3));
    std::string skip, root, mount, type, source, options;
    front >> skip >> skip >> skip >> root >> mount;
    back >> type >> source >> options;
    if (root != "/")
      continue;  // a part of the tree, where our own group cannot be found by its path
    if (type == "cgroup2") mounts[""] = mount;
    if (type != "cgroup") continue;
    for (const std::string_view option : Split(options, ",")) mounts[std::string(option)] = mount;
  }
  return mounts;
}

// The groups that this process is in: by controller, the newer kind under "".
std::map<std::string, std::string> FindGroups() {
  std::map<std::string, std::string> groups;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string path = line.substr(second + 1);
    const std::string_view names = std::string_view(line).substr(first + 1, second - first - 1);
    for (const std::string_view name : Split(names, ",")) groups[std::string(name)] = path;
  }
  return groups;
}

bool WriteValue(const fs::path& path, const std::string& value) {
  const int file = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool written =
      write(file, value.data(), value.size()) == static_cast<ssize_t>(value.size());
  close(file);
  return written;
}

// Whether groups below this one have memory and thread limits.
bool HandsDown(const fs::path& group) {
  std::ifstream file(group / "cgroup.subtree_control");
  std::string line;
  std::getline(file, line);
  return (" " + line + " ").find(" memory ") != std::string::npos &&
         (" " + line + " ").find(" pids ") != std::string::npos;
}

constexpr std::string_view kPrefix = "loopspec-";  // and the process that made it

std::string NextName() {
  static std::atomic<int> count = 0;
  return fmt::format("{}{}-{}", kPrefix, getpid(), ++count);
}

// A process that was killed leaves its group behind: the next one removes it. One that is in use
// cannot be removed.
void RemoveLeftovers(const fs::path& parent) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    const int maker = std::atoi(name.c_str() + kPrefix.size());
    if (maker > 0 && kill(maker, 0) != 0 && errno == ESRCH) rmdir(entry.path().c_str());
  }
}

}  // namespace

ControlGroup::ControlGroup(size_t memory_bytes, int threads) {
  const auto mounts = FindMounts();
  const auto groups = FindGroups();
  const std::string name = NextName();
  const auto own = [&](const std::string& controller) {
    return fs::path(mounts.at(controller).string() + groups.at(controller));
  };
  const auto has = [&](const std::string& controller) {
    return mounts.contains(controller) && groups.contains(controller);
  };
  if (has("memory") && has("pids")) {
    MakeVersion1(own("memory"), name, "memory.limit_in_bytes", std::to_string(memory_bytes));
    if (holds()) MakeVersion1(own("pids"), name, "pids.max", std::to_string(threads));
  } else if (has("")) {
    MakeVersion2(mounts.at(""), own(""), name, memory_bytes, threads);
  }
  // A group that cannot be entered is none: the sandbox runs without.
  for (const std::string& file : joins()) {
    if (access(file.c_str(), W_OK) == 0) continue;
    Remove();
    break;
  }
}

ControlGroup::~ControlGroup() {
  Remove();
}

std::vector<std::string> ControlGroup::joins() const {
  std::vector<std::string> files;
  for (const fs::path& folder : folders_) files.push_back((folder / "cgroup.procs").string());
  return files;
}

// Below our own group, or beside it: a group with processes of its own seldom hands limits down.
void ControlGroup::MakeVersion2(const fs::path& mount, const fs::path& own, const std::string& name,
                                size_t memory_bytes, int threads) {
  for (const fs::path& parent : {own, own.parent_path()}) {
    const bool inside = (parent.string() + "/").starts_with(mount.string() + "/");
    std::error_code error;
    if (!inside || !HandsDown(parent) || access((parent / "cgroup.procs").c_str(), W_OK) != 0 ||
        !fs::create_directory(parent / name, error)) {
      continue;
    }
    RemoveLeftovers(parent);
    folders_ = {parent / name};
    WriteValue(parent / name / "memory.swap.max", "0");  // not there without swap
    if (WriteValue(parent / name / "memory.max", std::to_string(memory_bytes)) &&
        WriteValue(parent / name / "pids.max", std::to_string(threads))) {
      return;
    }
    Remove();
  }
}

void ControlGroup::MakeVersion1(const fs::path& own, const std::string& name,
                                const std::string& file, const std::string& value) {
  std::error_code error;
  const fs::path folder = own / name;
  const bool made = fs::create_directory(folder, error);
  if (made) {
    RemoveLeftovers(own);
    folders_.push_back(folder);
  }
  if (!made || !WriteValue(folder / file, value)) Remove();
}

void ControlGroup::Remove() {
  for (const fs::path& folder : folders_) {
    // What was killed may take a moment to leave.
    for (int i = 0; i < 1000 && rmdir(folder.c_str()) != 0 && errno == EBUSY; ++i) usleep(1000);
  }
  folders_.clear();
}

}  // namespace loopspec::measure

#include "hub/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/error.h"

namespace loopspec::hub {

std::optional<FileLock> FileLock::Try(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0664);
  if (file < 0) Fail("cannot make the lock {}: {}", path.string(), std::strerror(errno));
  FileLock lock(file);
  if (flock(file, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK || errno == EACCES || errno == EINTR) return std::nullopt;
    // A file system without locks: two downloads of one blob write the same bytes to the same
    // places, so that the lock saves work and no more.
    return lock;
  }
  // Its holder may have removed the file between our two calls: that lock guards no name.
  struct stat held {
  }, named{};
  if (fstat(file, &held) != 0 || stat(path.c_str(), &named) != 0 || held.st_ino != named.st_ino ||
      held.st_dev != named.st_dev)
    return std::nullopt;
  return lock;
}

std::optional<FileLock> FileLock::Wait(const std::filesystem::path& path,
                                       const std::function<bool()>& cancelled) {
  while (!cancelled()) {
    if (auto lock = Try(path)) return lock;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return std::nullopt;
}

FileLock::FileLock(FileLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}

FileLock::~FileLock() {
  if (file_ >= 0) close(file_);  // which gives the lock back
}

}  // namespace loopspec::hub

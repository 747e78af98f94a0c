// A lock that other programs see too: flock on a file, as Python's filelock takes it. The kernel
// gives it back when its holder dies.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

namespace loopspec::hub {

class FileLock {
 public:
  // Nothing when somebody else holds it. Throws Error when the file cannot be made.
  static std::optional<FileLock> Try(const std::filesystem::path& path);
  // Waits, and asks `cancelled` all the while. Nothing when that says so.
  static std::optional<FileLock> Wait(const std::filesystem::path& path,
                                      const std::function<bool()>& cancelled);
  ~FileLock();
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&&) = delete;
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  explicit FileLock(int file) : file_(file) {}

  int file_ = -1;
};

}  // namespace loopspec::hub

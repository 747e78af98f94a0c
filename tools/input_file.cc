#include "tools/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace loopspec::tools {
namespace {

constexpr size_t kLongestInput = size_t{1} << 28;

std::string ReadAll(int fd, const std::string& name) {
  std::string text;
  char block[1 << 16];
  while (true) {
    const ssize_t count = read(fd, block, sizeof(block));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) Fail("cannot read {}: {}", name, std::strerror(errno));
    if (count == 0) return text;
    text.append(block, static_cast<size_t>(count));
    if (text.size() > kLongestInput)
      Fail("cannot read {}: it has more than the limit of {} bytes", name, kLongestInput);
  }
}

}  // namespace

std::string NameOfInput(const std::string& path) {
  return path == "-" ? "standard input" : path;
}

std::string ReadInput(const std::string& path) {
  if (path == "-") return ReadAll(STDIN_FILENO, NameOfInput(path));
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) Fail("cannot open {}: {}", path, std::strerror(errno));
  if (S_ISDIR(info.st_mode)) Fail("cannot read {}: it is a folder", path);
  if (S_ISSOCK(info.st_mode)) Fail("cannot read {}: it is a socket", path);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) Fail("cannot open {}: {}", path, std::strerror(errno));
  struct Closer {
    int fd;
    ~Closer() { close(fd); }
  } closer{fd};
  return ReadAll(fd, path);
}

}  // namespace loopspec::tools

#include "experiments/scoring/descriptor.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace loopspec::measure {

void Descriptor::Close() {
  if (number_ >= 0) close(number_);
  number_ = -1;
}

Pipe MakePipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) Fail("no pipe: {}", std::strerror(errno));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

Descriptor MakeMemoryFile(std::string_view bytes) {
  Descriptor file(memfd_create("loopspec", MFD_CLOEXEC));
  if (file.get() < 0) Fail("no file in memory: {}", std::strerror(errno));
  while (!bytes.empty()) {
    const ssize_t written = write(file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) Fail("a file in memory cannot be written: {}", std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  if (lseek(file.get(), 0, SEEK_SET) != 0) Fail("a file in memory: {}", std::strerror(errno));
  return file;
}

}  // namespace loopspec::measure

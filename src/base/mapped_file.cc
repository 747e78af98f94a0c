#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/error.h"

namespace loopspec {
namespace {

std::string Reason() {
  return std::strerror(errno);
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) Fail("cannot open {}: {}", path.string(), Reason());
  struct stat info {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    Fail("cannot read {}: not a regular file", path.string());
  }
  size_ = static_cast<size_t>(info.st_size);
  if (size_ > 0) {
    void* address = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (address == MAP_FAILED) {
      const std::string reason = Reason();
      close(fd);
      Fail("cannot map {}: {}", path.string(), reason);
    }
    data_ = static_cast<const std::byte*>(address);
  }
  close(fd);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::Advise(size_t offset, size_t size, int advice) const {
  if (data_ == nullptr || offset >= size_) return;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t begin = offset / page * page;
  const size_t end = std::min(size_, offset + size);
  madvise(const_cast<std::byte*>(data_) + begin, end - begin,
          advice);  // a hint: failure is harmless
}

void MappedFile::WillNeed(size_t offset, size_t size) const {
  Advise(offset, size, MADV_WILLNEED);
}
void MappedFile::DontNeed(size_t offset, size_t size) const {
  Advise(offset, size, MADV_DONTNEED);
}

std::string ReadFile(const std::filesystem::path& path, size_t limit) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    Fail("cannot read {}: it is a folder", path.string());
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) Fail("cannot open {}: {}", path.string(), Reason());
  std::string text;
  char block[1 << 16];
  while (in.read(block, sizeof(block)) || in.gcount() > 0) {
    text.append(block, static_cast<size_t>(in.gcount()));
    if (text.size() > limit) {
      Fail("cannot read {}: larger than the limit of {} bytes", path.string(), limit);
    }
  }
  return text;
}

}  // namespace loopspec

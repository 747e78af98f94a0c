// Files that are read: mapped into memory, or as a string. Regular files only: a pipe or a device
// in place of a model's file would be waited for or read for ever.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace loopspec {

// The mapping lives as long as the object.
class MappedFile {
 public:
  // Throws Error naming the path when the file cannot be opened or mapped, is no regular file, or
  // is larger than `limit`.
  explicit MappedFile(const std::filesystem::path& path, size_t limit = SIZE_MAX);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // Tells the kernel that [offset, offset + size) will be read soon, or is not needed for now.
  void WillNeed(size_t offset, size_t size) const;
  void DontNeed(size_t offset, size_t size) const;

 private:
  void Advise(size_t offset, size_t size, int advice) const;

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// For the main of a program: a file that is cut short while it is mapped, or that its disk no
// longer gives, raises SIGBUS when its bytes are needed. From this call on the process then ends
// with one sentence and exit code 2. Faults elsewhere are handled as they were before.
void ReportMappedFileFaults();

// The whole file as a string; throws Error naming the path. `limit` bounds what a hostile path can
// make us read.
std::string ReadFile(const std::filesystem::path& path, size_t limit = size_t{1} << 28);

// Whether something lies there. Throws Error for a link that points nowhere and for a folder that
// may not be looked into: "not there" would send the user the wrong way.
bool FileExists(const std::filesystem::path& path);

}  // namespace loopspec

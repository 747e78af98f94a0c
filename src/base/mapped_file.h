// A file mapped read-only into memory; the mapping lives as long as the object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace loopspec {

class MappedFile {
 public:
  // Throws Error naming the path when the file cannot be opened or mapped, or is no regular file.
  explicit MappedFile(const std::filesystem::path& path);
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

// The whole file as a string; throws Error naming the path. `limit` bounds what a hostile path can
// make us read.
std::string ReadFile(const std::filesystem::path& path, size_t limit = size_t{1} << 31);

}  // namespace loopspec

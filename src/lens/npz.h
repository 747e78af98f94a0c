// Arrays for numpy: an .npz file, which is a zip archive of .npy files, not compressed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace loopspec {

struct NpyArray {
  std::string name;
  std::string type;  // numpy's: "<f4", "<i4"
  std::vector<int64_t> shape;
  std::vector<std::byte> data;
};

NpyArray FloatArray(std::string name, std::vector<int64_t> shape, std::span<const float> values);
NpyArray IntArray(std::string name, std::vector<int64_t> shape, std::span<const int32_t> values);

// Throws Error when the file cannot be written.
void WriteNpz(const std::filesystem::path& path, std::span<const NpyArray> arrays);

}  // namespace loopspec

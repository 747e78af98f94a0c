// Any bytes as a safetensors file: an Error, or tensors that lie within it and do not overlap.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error.h"
#include "tensor/safetensors.h"

namespace {

// The header's length is found by chance too seldom: given a first byte, the input is the header
// and the rest is made.
std::string AsFile(const uint8_t* data, size_t size) {
  if (size == 0 || data[0] % 4 == 0) return std::string(reinterpret_cast<const char*>(data), size);
  const uint64_t header = size - 1;
  std::string file(8, '\0');
  std::memcpy(file.data(), &header, 8);
  file.append(reinterpret_cast<const char*>(data) + 1, size - 1);
  return file.append(static_cast<size_t>(data[0]) * 4, '\7');
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string file = AsFile(data, size);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(file.data(), file.size()));
  try {
    uint64_t total = 0;
    for (const auto& [name, view] : loopspec::ParseSafetensors(bytes, "fuzz")) {
      const size_t length = view.bytes();
      if (view.data < bytes.data() || view.data + length > bytes.data() + bytes.size())
        std::abort();
      // Reads every byte, so that the sanitizer sees a view outside the file.
      unsigned sum = 0;
      for (size_t i = 0; i < length; ++i) sum += std::to_integer<unsigned>(view.data[i]);
      total += length + sum % 1;
    }
    if (total > bytes.size()) std::abort();  // more than there is: some overlap
  } catch (const loopspec::Error&) {
  }
  return 0;
}

// Any tensors of a checkpoint bound as a matrix of few bits: an Error, or a matrix whose rows lie
// within the file. The input is a scheme, a shape and a safetensors header; data is made.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <unistd.h>

#include "base/error.h"
#include "model/quantization.h"
#include "tensor/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  const auto scheme =
      data[0] % 2 == 0 ? loopspec::Quantization::kCompressedTensors : loopspec::Quantization::kMlx;
  const int64_t rows = 1 + data[1] % 33, columns = 1 + data[2] % 130;
  const std::string text(reinterpret_cast<const char*>(data) + 4, size - 4);
  try {
    loopspec::ParseQuantization(text, "fuzz");
  } catch (const loopspec::Error&) {
  }
  const uint64_t header = text.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &header, 8);
  file += text;
  file.append(static_cast<size_t>(data[3]) * 32, '\x35');
  const std::string path =
      (std::filesystem::temp_directory_path() / ("quantized_fuzz_" + std::to_string(getpid())))
          .string();
  std::ofstream(path, std::ios::binary) << file;
  try {
    const loopspec::Checkpoint checkpoint = loopspec::Checkpoint::OpenFile(path);
    std::set<std::string, std::less<>> taken;
    const auto view =
        loopspec::BindQuantized(scheme, checkpoint, "a.weight", {rows, columns}, taken);
    if (view) {
      std::vector<float> row(static_cast<size_t>(columns));
      for (int64_t r = 0; r < rows; ++r) view->quantized->DequantizeRow(r, row.data());
    }
  } catch (const loopspec::Error&) {
  }
  std::filesystem::remove(path);
  return 0;
}

// Any bytes as a GGUF file: an Error, or tensors that lie within it, whose rows can be read.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "model/gguf_model.h"
#include "tensor/gguf.h"
#include "text/gguf_text.h"

namespace {

// The beginning is found by chance too seldom: given a first byte, it is made, and data follows.
std::string AsFile(const uint8_t* data, size_t size) {
  if (size == 0 || data[0] % 4 == 0) return std::string(reinterpret_cast<const char*>(data), size);
  std::string file = "GGUF";
  const uint32_t version = 3;
  const uint64_t counts[2] = {data[0] / 4u % 4u, data[0] / 16u};  // tensors, entries
  file.append(reinterpret_cast<const char*>(&version), 4);
  file.append(reinterpret_cast<const char*>(counts), 16);
  file.append(reinterpret_cast<const char*>(data) + 1, size - 1);
  return file.append(2048, '\7');
}

void ReadAll(const loopspec::TensorView& view, std::span<const std::byte> file, bool within) {
  if (within && (view.data < file.data() || view.data + view.bytes() > file.data() + file.size()))
    std::abort();
  if (view.quantized != nullptr) {
    if (view.quantized->columns == 0 || view.quantized->columns > 1 << 20) return;
    std::vector<float> row(static_cast<size_t>(view.quantized->columns));
    for (int64_t r = 0; r < std::min<int64_t>(view.quantized->rows, 16); ++r)
      view.quantized->DequantizeRow(r, row.data());
    return;
  }
  unsigned sum = 0;  // every byte, so that the sanitizer sees a view outside the file
  for (size_t i = 0; i < view.bytes(); ++i) sum += std::to_integer<unsigned>(view.data[i]);
  volatile unsigned seen = sum;
  static_cast<void>(seen);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string file = AsFile(data, size);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(file.data(), file.size()));
  try {
    loopspec::Json metadata;
    for (const auto& [name, view] : loopspec::ParseGguf(bytes, "fuzz", metadata))
      ReadAll(view, bytes, true);
    try {
      const loopspec::Tokenizer tokenizer =
          loopspec::Tokenizer::FromJson(loopspec::GgufTokenizerJson(metadata, "fuzz"), "fuzz");
      static_cast<void>(tokenizer.Decode(tokenizer.Encode("a b <s> 12"), false));
    } catch (const loopspec::Error&) {
    }
    loopspec::TensorMap tensors;
    std::vector<std::unique_ptr<std::byte[]>> own;
    loopspec::ParseGgufModel(bytes, "fuzz", tensors, own);
    for (const auto& [name, view] : tensors) ReadAll(view, bytes, false);
  } catch (const loopspec::Error&) {
  }
  return 0;
}

// Reads and writes the safetensors format; a checkpoint is one file or several with an index.
//
// Format: 8 bytes little-endian header length n, n bytes of JSON {name: {dtype, shape,
// data_offsets: [begin, end)}}, then the data. Every offset, length and shape is checked before
// use: files come from strangers.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "tensor/tensor.h"

namespace loopspec {

using TensorMap = std::map<std::string, TensorView, std::less<>>;

// Checks `file` (named `what` in errors) and returns views into it. Throws Error.
TensorMap ParseSafetensors(std::span<const std::byte> file, const std::string& what);

// The tensors of a model folder: model.safetensors, or the shards that model.safetensors.index.json
// names.
class Checkpoint {
 public:
  static Checkpoint Open(const std::filesystem::path& folder);
  static Checkpoint OpenFile(const std::filesystem::path& file);
  // Of a file in another format that was parsed already; `own` is memory that tensors point to
  // beside the file's.
  static Checkpoint Of(const std::filesystem::path& path, MappedFile file, TensorMap tensors,
                       std::vector<std::unique_ptr<std::byte[]>> own);

  const TensorMap& tensors() const { return tensors_; }
  const std::filesystem::path& path() const { return path_; }
  size_t mapped_bytes() const;

  // Lets the kernel drop the pages of a tensor that has been copied elsewhere.
  void Forget(const TensorView& tensor) const;

 private:
  void Add(const std::filesystem::path& file);

  std::filesystem::path path_;
  std::vector<MappedFile> files_;
  TensorMap tensors_;
  std::vector<std::unique_ptr<std::byte[]>> own_;
};

struct NamedTensor {
  std::string name;
  TensorView view;
};

// Throws Error naming `what` when the stream does not take it all.
void WriteSafetensors(std::ostream& out, std::span<const NamedTensor> tensors,
                      const std::string& what);
// As a whole (base/whole_file.h). Throws Error.
void WriteSafetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors);

}  // namespace loopspec

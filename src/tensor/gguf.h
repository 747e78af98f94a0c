// Reads GGUF, llama.cpp's file of metadata and tensors. Every count, length and offset is checked
// before use: files come from strangers.
//
// Format (versions 2 and 3, little-endian): "GGUF", u32 version, u64 tensors, u64 entries; entries
// of name, u32 type, value; tensors of name, u32 dimensions, u64 extents (the inner one first), u32
// type, u64 offset; then, aligned, the data.
#pragma once

#include <span>
#include <string>

#include "base/json_fwd.h"
#include "tensor/safetensors.h"

namespace loopspec {

// The tensors by their names in the file, as views into it: F32, F16 and BF16 plain, Q8_0, Q4_0,
// Q4_K and Q6_K as QuantizedTensor. Metadata goes to `metadata`, an object. Throws Error naming
// `what`.
TensorMap ParseGguf(std::span<const std::byte> file, const std::string& what, Json& metadata);

}  // namespace loopspec

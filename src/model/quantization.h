// Weights of few bits in a model folder: which scheme config.json names, and how the tensors of a
// matrix are put together.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tensor/safetensors.h"

namespace loopspec {

enum class Quantization {
  kNone,
  kCompressedTensors,  // int-quantized and pack-quantized, as llm-compressor and vLLM have them
  kMlx,                // affine, 4 and 8 bit
};

// What config.json of `folder` says. Throws Error naming a scheme that is not supported, with what
// to do instead.
Quantization ReadQuantization(const std::filesystem::path& folder);
// The same from the text of a config.json; `what` names it in errors.
Quantization ParseQuantization(const std::string& config, const std::string& what);

// The matrix `name` (...weight) where the checkpoint has it in few bits; nothing where it is stored
// plainly or not at all. Notes the tensors that it is made of in `taken`. Throws Error for parts
// that are missing or of the wrong shape.
std::optional<TensorView> BindQuantized(Quantization scheme, const Checkpoint& checkpoint,
                                        const std::string& name, const std::vector<int64_t>& shape,
                                        std::set<std::string, std::less<>>& taken);
// Names of all tensors that may stand for a matrix.
std::vector<std::string> QuantizedParts(const std::string& name);

}  // namespace loopspec

// Looped models in GGUF files: llama.cpp's architectures `ouro` and `nanbeige`, as the config.json
// and tensors of the released folders.
#pragma once

#include <filesystem>
#include <string>

#include "tensor/safetensors.h"

namespace loopspec {

struct GgufModel {
  std::string config;     // a config.json
  Checkpoint checkpoint;  // under the released names
};

bool IsGguf(const std::filesystem::path& path);
// Throws Error, also for a file that does not say how often its layers are run.
GgufModel OpenGguf(const std::filesystem::path& path);
// The same from a file's bytes, without the checkpoint: for fuzzing. Returns the config.
std::string ParseGgufModel(std::span<const std::byte> file, const std::string& what,
                           TensorMap& tensors, std::vector<std::unique_ptr<std::byte[]>>& own);

}  // namespace loopspec

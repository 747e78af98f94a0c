// Where a model lies: a folder, or ORG/NAME or ORG/NAME@REVISION in the Hugging Face cache.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace loopspec {

// The folder, or the GGUF file, for --model. Throws Error with the download command when a name is
// not in the cache.
std::filesystem::path ResolveModel(const std::string& model);

// Asked about a name that is not in the cache; true: it is there now. A program sets it at most
// once, before it has threads; the commands offer a download by it.
using ModelFetcher = std::function<bool(const std::string& name)>;
void SetModelFetcher(ModelFetcher fetcher);

// Where the files beside the weights lie: the model's folder, or that of its GGUF file.
std::filesystem::path TextFolder(const std::filesystem::path& model);

}  // namespace loopspec

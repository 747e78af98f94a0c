// Where a model lies: a folder, or ORG/NAME in the Hugging Face cache.
#pragma once

#include <filesystem>
#include <string>

namespace loopspec {

// The folder for --model. Throws Error with the download command when a name is not in the cache.
std::filesystem::path ResolveModel(const std::string& model);

}  // namespace loopspec

// Which weights were measured: a name can be given to anything, a hash cannot.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace loopspec::experiments {

// SHA-256 (FIPS 180-4) in hexadecimal.
std::string Sha256(std::span<const uint8_t> bytes);

// Of the *.safetensors files of a folder: the file's own SHA-256 where there is one, as the Hugging
// Face Hub shows it; of several, that of the lines "HASH  NAME" in order of their names, as
// `sha256sum *.safetensors | sha256sum` gives it. Empty when there are none.
std::string HashWeights(const std::filesystem::path& folder);

}  // namespace loopspec::experiments

// JSON Lines from benchmark files, plain or gzip.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace loopspec::experiments {

// Reads at most `limit` objects. A path that ends in .gz is decompressed. Throws Error naming the
// file and the line.
std::vector<Json> ReadJsonLines(const std::filesystem::path& path,
                                std::optional<size_t> limit = std::nullopt);

// A string that must be there; `where` names the entry in errors.
std::string NeedString(const Json& object, const std::string& key, const std::string& where);

}  // namespace loopspec::experiments

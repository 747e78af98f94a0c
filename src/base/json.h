// JSON as it comes from strangers: parsed with a depth limit, read with errors that name the key.
#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/json_fwd.h"

namespace loopspec {

// `what` names the source in errors ("config.json of /models/x"). Throws Error on bad JSON or
// nesting over 512 levels.
Json ParseJson(std::string_view text, std::string_view what);
OrderedJson ParseOrderedJson(std::string_view text, std::string_view what);
Json ReadJsonFile(const std::filesystem::path& path);

// Typed look-up in an object; `what` names the object in errors. A null value counts as absent.
// Throws Error when the value is there with the wrong type or, for integers, outside [low, high].
std::optional<int64_t> FindInt(const Json& object, std::string_view key, std::string_view what,
                               int64_t low, int64_t high);
std::optional<double> FindNumber(const Json& object, std::string_view key, std::string_view what);
std::optional<bool> FindBool(const Json& object, std::string_view key, std::string_view what);
std::optional<std::string> FindString(const Json& object, std::string_view key,
                                      std::string_view what);

}  // namespace loopspec

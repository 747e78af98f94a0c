// The names of JSON values for headers that only mention them; base/json.h has the rest, which
// takes seconds to compile.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace loopspec {

using Json = nlohmann::json;
// Keeps the order of keys, for output that people read and for Jinja dictionaries.
using OrderedJson = nlohmann::ordered_json;

}  // namespace loopspec

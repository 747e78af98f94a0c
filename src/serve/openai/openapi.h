// /openapi.json, made from the tables that requests are checked against.
#pragma once

#include <string>

#include "base/json.h"
#include "serve/openai/parse.h"

namespace loopspec::serve {

OrderedJson OpenApi(const WireParser& parser, const std::string& version);

}  // namespace loopspec::serve

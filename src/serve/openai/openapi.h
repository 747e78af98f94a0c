// /openapi.json, made from the tables that requests are checked against.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "serve/openai/parse.h"

namespace loopspec::serve {

// A route of another API that answers with text.
struct OpenApiRoute {
  std::string path;
  std::string summary;
  OrderedJson body;  // JSON Schema of each
  OrderedJson answer;
  OrderedJson error;
  bool streams = false;
};

OrderedJson OpenApi(const WireParser& parser, const std::string& version,
                    const std::vector<OpenApiRoute>& others = {});
// An object with all of these properties.
OrderedJson OpenApiObject(OrderedJson properties);
// The same as clients of OpenAI get for a request that is refused.
OrderedJson OpenApiError();

}  // namespace loopspec::serve

// The fields of request bodies: one table from which both the parser and /openapi.json are made, so
// that what is documented is what is checked.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "serve/openai/types.h"

namespace loopspec::serve {

// `Value`: Json, or OrderedJson where the order of an object's members counts.
template <typename Request, typename Value = Json>
struct Field {
  std::string name;
  unsigned endpoints;  // those that know it
  std::string description;
  OrderedJson schema;  // JSON Schema of its values; null is always allowed besides
  // Reads a value that is not null; `path` names it in errors. Throws ApiException.
  std::function<void(const Value& value, const std::string& path, Request& request)> read;
};

using CompletionField = Field<CompletionRequest>;

std::vector<CompletionField> CompletionFields(const WireLimits& limits);
// Members of SGLang's sampling_params.
std::vector<CompletionField> SamplingParamsFields(const WireLimits& limits);
std::vector<Field<TokenizeRequest>> TokenizeFields(const WireLimits& limits);
// A name that no table has there: refused where the server is strict, else noted.
void Unknown(const std::string& path, const WireLimits& limits, IgnoredFields& ignored);

// JSON Schema of a request body: every field of the table that the endpoint knows. `closed`: there
// are no others.
template <typename Request, typename Value>
OrderedJson BodySchema(const std::vector<Field<Request, Value>>& fields, unsigned endpoint,
                       const std::vector<std::string>& required, bool closed) {
  OrderedJson properties = OrderedJson::object();
  for (const Field<Request, Value>& field : fields) {
    if ((field.endpoints & endpoint) == 0) continue;
    OrderedJson schema = field.schema;
    if (std::find(required.begin(), required.end(), field.name) == required.end()) {
      schema = {{"anyOf", {std::move(schema), {{"type", "null"}}}}};
    }
    schema["description"] = field.description;
    properties[field.name] = std::move(schema);
  }
  return {{"type", "object"},
          {"properties", std::move(properties)},
          {"required", required},
          {"additionalProperties", !closed}};
}

// A value for an error message: short, and valid UTF-8.
std::string Shown(const Json& value);

}  // namespace loopspec::serve

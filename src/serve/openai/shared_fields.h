// Fields of chat completions that mean the same in the bodies of other APIs: sampling, grammars and
// what this engine adds.
#pragma once

#include <string_view>
#include <vector>

#include "serve/openai/fields.h"
#include "serve/openai/parse.h"

namespace loopspec::serve {

bool IsSharedField(std::string_view name);

// `Request` has a CompletionRequest `chat`. What `fields` has got already stays as it is.
template <typename Request>
void AddSharedFields(const WireParser& parser, unsigned endpoints,
                     std::vector<Field<Request, OrderedJson>>& fields) {
  for (const CompletionField& field : parser.completion_fields()) {
    if ((field.endpoints & kChat) == 0 || !IsSharedField(field.name)) continue;
    fields.push_back({field.name, endpoints, field.description, field.schema,
                      [read = field.read](const OrderedJson& value, const std::string& path,
                                          Request& request) { read(value, path, request.chat); }});
  }
}

// Null counts as absent.
template <typename Request>
void ReadOrderedFields(const OrderedJson& body, unsigned endpoint,
                       const std::vector<Field<Request, OrderedJson>>& fields,
                       const WireLimits& limits, Request& request) {
  for (const auto& [key, value] : body.items()) {
    const auto field =
        std::find_if(fields.begin(), fields.end(), [&name = key, endpoint](const auto& known) {
          return (known.endpoints & endpoint) != 0 && known.name == name;
        });
    if (field == fields.end()) {
      Unknown(key, limits, request.chat.ignored);
    } else if (!value.is_null()) {
      field->read(value, key, request);
    }
  }
}

}  // namespace loopspec::serve

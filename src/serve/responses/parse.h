// Bodies of OpenAI's /v1/responses -> requests in the words of its chat. Whatever the bytes are,
// the result is a request or an ApiException that names the field. Pure functions: no model, no
// clock.
#pragma once

#include <string_view>
#include <vector>

#include "serve/openai/fields.h"
#include "serve/openai/parse.h"
#include "serve/openai/types.h"

namespace loopspec::serve {

struct ResponsesRequest {
  CompletionRequest chat;
  OrderedJson echo;      // members of the response that repeat what was asked for
  bool summary = false;  // what the model thinks is written as a summary, not as content
};

class ResponsesParser {
 public:
  explicit ResponsesParser(const WireParser& parser);

  ResponsesRequest Read(std::string_view body) const;
  const std::vector<Field<ResponsesRequest, OrderedJson>>& fields() const { return fields_; }

 private:
  const WireLimits limits_;
  std::vector<Field<ResponsesRequest, OrderedJson>> fields_;
};

}  // namespace loopspec::serve

// Bodies of Anthropic's /v1/messages and /v1/messages/count_tokens -> requests in the words of
// OpenAI's chat. Whatever the bytes are, the result is a request or an ApiException that names the
// field. Pure functions: no model, no clock.
#pragma once

#include <string_view>
#include <vector>

#include "serve/openai/fields.h"
#include "serve/openai/parse.h"
#include "serve/openai/types.h"

namespace loopspec::serve {

struct MessagesRequest {
  CompletionRequest chat;
};

class MessagesParser {
 public:
  explicit MessagesParser(const WireParser& parser);

  // `endpoint`: kMessages or kCountTokens.
  CompletionRequest Read(Endpoint endpoint, std::string_view body) const;
  const std::vector<Field<MessagesRequest, OrderedJson>>& fields() const { return fields_; }

 private:
  const WireLimits limits_;
  std::vector<Field<MessagesRequest, OrderedJson>> fields_;
};

}  // namespace loopspec::serve

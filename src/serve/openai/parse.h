// Request bodies -> requests. Whatever the bytes are, the result is a request or an ApiException
// that names the field. Pure functions: no model, no clock.
#pragma once

#include <string_view>
#include <vector>

#include "serve/openai/error.h"
#include "serve/openai/fields.h"
#include "serve/openai/types.h"

namespace loopspec::serve {

// A body that is a JSON object, its members in their order.
OrderedJson ParseOrderedBody(std::string_view body);

class WireParser {
 public:
  explicit WireParser(const WireLimits& limits);

  CompletionRequest Completion(Endpoint endpoint, std::string_view body) const;
  TokenizeRequest Tokenize(std::string_view body) const;
  DetokenizeRequest Detokenize(std::string_view body) const;

  const WireLimits& limits() const { return limits_; }
  const std::vector<CompletionField>& completion_fields() const { return fields_; }
  const std::vector<Field<TokenizeRequest>>& tokenize_fields() const { return tokenize_fields_; }

 private:
  WireLimits limits_;
  std::vector<CompletionField> fields_;
  std::vector<Field<TokenizeRequest>> tokenize_fields_;
};

}  // namespace loopspec::serve

// OpenAI's and SGLang's requests held against a model: defaults, limits, prompts as ids.
#pragma once

#include <string_view>

#include "serve/openai/parse.h"
#include "serve/openai/text_call.h"
#include "serve/openai/types.h"

namespace loopspec::serve {

// Throws ApiException that names the field at fault.
TextCall Resolve(const CompletionRequest& request, const CallContext& context);

// Reads a body now and resolves it when the model is there.
ResolveCall ReadTextCall(Endpoint endpoint, std::string_view body, const WireParser& parser);

}  // namespace loopspec::serve

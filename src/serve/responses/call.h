// A body of /v1/responses as a call for text.
#pragma once

#include <string_view>

#include "serve/openai/text_call.h"
#include "serve/responses/parse.h"

namespace loopspec::serve {

// Reads a body now and resolves it when the model is there. `ignored`: told of what nobody knows.
ResolveCall ReadResponsesCall(std::string_view body, const ResponsesParser& parser,
                              IgnoredFields& ignored);

}  // namespace loopspec::serve

// A body of /v1/responses as a call for text.
#pragma once

#include <string_view>

#include "serve/openai/text_call.h"
#include "serve/responses/parse.h"

namespace loopspec::serve {

// Reads a body now and resolves it when the model is there. `ignored` gets the names
// of unknown fields and items.
ResolveCall ReadResponsesCall(std::string_view body, const ResponsesParser& parser,
                              IgnoredFields& ignored);

}  // namespace loopspec::serve

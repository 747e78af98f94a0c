// A body of /v1/messages as a call for text.
#pragma once

#include <string_view>

#include "serve/messages/parse.h"
#include "serve/openai/text_call.h"

namespace loopspec::serve {

// Reads a body now and resolves it when the model is there. `endpoint`: kMessages, or kCountTokens
// for a call that is only counted. `ignored` gets the names of unknown fields and blocks.
ResolveCall ReadMessagesCall(Endpoint endpoint, std::string_view body, const MessagesParser& parser,
                             IgnoredFields& ignored);

}  // namespace loopspec::serve

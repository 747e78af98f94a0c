// Conversations with tools for templates that need them in another form. docs/serving.md has the
// words of the prompt.
#pragma once

#include "base/json_fwd.h"

namespace loopspec {

// For a template that knows no tools: they are named at the end of the system message, an
// assistant's calls are text of its message, and results of tools are a user's message.
OrderedJson WithToolsInWords(const OrderedJson& messages, const OrderedJson& tools);

// For a template that takes one call in a message: each in a message of its own.
OrderedJson WithOneCallEach(const OrderedJson& messages);

}  // namespace loopspec

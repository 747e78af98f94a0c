// Text on its way into JSON: tokens that are no text. Reasoning comes apart (text/reasoning.h).
#pragma once

#include <string>
#include <string_view>

#include "text/reasoning.h"

namespace loopspec::serve {

// Neither a terminal's control sequences (C1: U+009B is an escape of its own) nor marks that turn
// the order of what follows around reach whoever reads the log: they become \uXXXX, as in JSON.
std::string Visible(std::string_view line);

// The name of a call: the same for the same answer, another for any other.
std::string ToolCallId(std::string_view answer, int choice, int call);

// A token as it is listed beside its log-probability: its text, or "bytes:\xe2\x80" where that is
// no valid UTF-8.
std::string TokenText(std::string_view piece);

}  // namespace loopspec::serve

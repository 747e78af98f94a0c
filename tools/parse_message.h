// What is wrong with a command line, in our words: the parser's own say "Could not convert" and
// "not in range" of texts that are no numbers.
#pragma once

#include <functional>
#include <string>

namespace loopspec::tools {

// The parser's message in our words, or as it is where it says enough. `takes_fractions` tells
// whether the option of a name takes any number, or whole ones only.
std::string ParseMessage(const std::string& said,
                         const std::function<bool(const std::string& option)>& takes_fractions);

}  // namespace loopspec::tools

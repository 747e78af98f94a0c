// Text from files and command lines, made safe for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace loopspec {

// Control characters and bytes that are not UTF-8 as \x1b and the like, so that a message can
// neither move the cursor nor hide what it says. Everything else stays.
std::string Printable(std::string_view text);

}  // namespace loopspec

// The help of a command.
#pragma once

#include <string>

namespace loopspec::tools {

struct CommandSpec;

// What --help prints for a command, or for the application that holds the commands: what it does,
// how it is called, its arguments, its options under their headings, its commands, its footer.
std::string HelpPage(const CommandSpec& command);

}  // namespace loopspec::tools

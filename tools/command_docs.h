// Completions and a manual page, made from the table of commands and options.
#pragma once

#include "tools/command_line.h"

namespace loopspec::tools {

// Adds `completion` and `man` to the application, whose commands they describe.
void AddDocsCommands(CommandSpec& app, Command root);

}  // namespace loopspec::tools

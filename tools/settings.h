// Options that are not on the command line: LOOPSPEC_* variables, and a file of the user's.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace loopspec::tools {

struct CommandSpec;

// "LOOPSPEC_MAX_TOKENS" of "max-tokens".
std::string VariableOf(const std::string& long_name);

// $LOOPSPEC_CONFIG, else loopspec/config in $XDG_CONFIG_HOME or ~/.config; empty without a home.
std::string ConfigFile();

// Gives every option of `command` ("serve") its variable, and sets the variables that the file has
// values for and the environment has not, those of the command and those of all. So the command
// line comes before the environment, and that before the file. Returns where each variable came
// from ("~/.config/loopspec/config, line 3"). Throws Error naming the file and the line.
//
//   model = models/ouro-demo     # for every command that has the option; max_tokens = max-tokens
//   [serve]
//   port = 9000
std::map<std::string, std::string> ReadSettings(CommandSpec& app, const std::string& command);

}  // namespace loopspec::tools

// From the words of a command line to the options of a command.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/error.h"
#include "tools/command_spec.h"

namespace loopspec::tools {

// What is wrong with the words after a command, in one sentence.
class UsageError : public Error {
 public:
  using Error::Error;
};

// The command that `words` name; `used` counts the words of its name. Throws Error for an unknown
// command, or where none is named and help is not asked for.
CommandSpec& FindCommand(CommandSpec& app, const std::vector<std::string>& words, size_t& used);

// Reads the words after a command's name into its options; options that are not among them are
// taken from their variables. --help (-h): nothing is read, and the result is false. Throws
// UsageError for a word that fits nowhere, a value or an option that is missing, BadValue for a
// value that an option does not take.
//
//   --name VALUE, --name=VALUE, -n VALUE, -nVALUE; flags: --name, --name=false, -ab for -a -b
//   a list takes every word up to the next option, but leaves one to each required argument
//   after -- every word is an argument without dashes; so is a number below zero
bool ReadWords(CommandSpec& command, const std::vector<std::string>& words);

}  // namespace loopspec::tools

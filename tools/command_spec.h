// Commands and their options as data: made through command_line.h, and walked by the parser, the
// help, the settings, the completions and the manual page.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tools/option_value.h"

namespace loopspec::tools {

struct OptionSpec {
  std::vector<std::string> long_names, short_names;  // without dashes: "model", "m"
  // Names that other programs have for it, with their dashes: "--temp". Read, but not listed.
  std::vector<std::string> aliases;
  std::string argument;  // its name as an argument without dashes: MODEL; empty: it cannot be one
  std::string help;
  std::string heading = "Options";  // in the help
  std::string type_name;            // what the help calls its value; empty: a flag
  std::string default_text;         // what the help shows as its default
  std::string variable;             // LOOPSPEC_MODEL; empty: none
  bool required = false;
  bool flag = false;      // no value follows it
  bool many = false;      // a list
  bool one_each = false;  // a list that takes one value each time it is given
  // What completions offer where any text is a value.
  std::vector<std::string> examples;
  std::string completer;  // or the words of a command that prints them: "list --names"
  // Options that give the same thing: where one of them is given, this one is not missing.
  std::vector<const OptionSpec*> others;
  OptionRule rule;
  // Reads the texts that were given into the variable. Throws BadValue.
  std::function<void(const OptionRule& rule, const std::vector<std::string>& texts)> read;

  std::function<std::string()> shown;  // the value that the variable has now

  // What a command line gave it.
  std::vector<std::string> texts;
  bool without_dashes = false;  // as an argument
  bool from_variable = false;   // not on the command line

  bool has_dashes() const { return !long_names.empty() || !short_names.empty(); }
  // "--max-tokens", "-m", "FILE": the first that it has.
  std::string name() const {
    if (!long_names.empty()) return "--" + long_names[0];
    return short_names.empty() ? argument : "-" + short_names[0];
  }
};

struct CommandSpec {
  std::string name;                  // the application's is loopspec
  std::vector<std::string> aliases;  // what other programs call it; read, but not listed
  std::string help, footer;
  CommandSpec* parent = nullptr;
  std::vector<std::unique_ptr<OptionSpec>> options;
  std::vector<std::unique_ptr<CommandSpec>> commands;
  std::function<void()> action;

  // "loopspec experiment run".
  std::string path() const { return parent == nullptr ? name : parent->path() + " " + name; }
  CommandSpec* Find(const std::string& wanted) const {
    for (const auto& command : commands) {
      const std::vector<std::string>& also = command->aliases;
      if (command->name == wanted || std::find(also.begin(), also.end(), wanted) != also.end())
        return command.get();
    }
    return nullptr;
  }
};

}  // namespace loopspec::tools

// The command line in the few words that our commands need: what a command declares. Words are read
// by parse_words.h, values by option_value.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace loopspec::tools {

struct CommandSpec;
struct OptionSpec;

// One option of a command: a handle, valid as long as the application. Each setter returns the
// handle, so that they can be chained.
class Option {
 public:
  explicit Option(OptionSpec* option) : option_(option) {}

  Option Required() const;
  // Heading in the help under which it stands.
  Option Group(const std::string& heading) const;
  // What the help calls the value, instead of N, X or TEXT by its type.
  Option TypeName(const std::string& name) const;
  // The help shows the value that the variable has now, or `text` instead.
  Option ShowDefault() const;
  Option ShowDefault(const std::string& text) const;
  // For whole numbers: only those from low to high, both included.
  Option Range(int64_t low, int64_t high) const;
  // For texts.
  Option OneOf(const std::vector<std::string>& values) const;
  // One value each time it is given, not as many as follow.
  Option OneValueEach() const;
  // Another name, as other programs have it: "--temp". It is read, but not listed.
  Option Alias(const std::string& name) const;
  // What completions offer, where any text is a value.
  Option Examples(const std::vector<std::string>& values) const;
  // What completions offer is what `loopspec WORDS` prints, a value per line.
  Option CompletedBy(const std::string& words) const;
  // Where one of these is given, an argument without dashes is not this one.
  Option OrElse(const std::vector<Option>& others) const;

  // How often it was given; known once the command line has been parsed.
  size_t Count() const;
  // As the help writes it: --prompt.
  std::string Name() const;

 private:
  OptionSpec* option_;
};

// A command, or the application that holds the commands: a handle as well.
class Command {
 public:
  // `model_named`: the command line names the model with --model, so that its first argument
  // without dashes is something else.
  Command(CommandSpec& command, bool model_named) : command_(&command), model_named_(model_named) {}

  // A command with commands of its own does nothing by itself: one of them must be given.
  Command AddCommand(const std::string& name, const std::string& help) const;
  // --help, -h: every command has it.
  void AddHelp() const;
  // `names`: "--model,-m", or "FILE" for an argument without dashes. `value` keeps its content
  // where the option is not given. Defined for std::string, int, int64_t, uint64_t, float,
  // double, std::optional<int> and vectors of std::string and int: the list is in command_line.cc.
  template <typename T>
  Option AddOption(const std::string& names, T& value, const std::string& help) const;
  // --model, -m or, where the command line has neither, the first argument without dashes.
  Option AddModel(std::string& value, const std::string& help) const;
  Option AddFlag(const std::string& names, bool& value, const std::string& help) const;

  // Another name, as other programs have it. It is read, but not listed.
  Command Alias(const std::string& name) const;
  // Text below the options in the help.
  void SetFooter(const std::string& text) const;
  // What runs when the command was given, after all options have been read.
  void SetAction(std::function<void()> action) const;

 private:
  CommandSpec* command_;
  bool model_named_;
};

}  // namespace loopspec::tools

#include "tools/help_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "tools/command_spec.h"

namespace loopspec::tools {
namespace {

constexpr size_t kColumn = 34;  // where explanations begin

// A name, and beside it what it is; below it where the name is too long.
std::string Entry(const std::string& name, const std::string& explanation) {
  if (name.size() + 2 < kColumn) return fmt::format("  {:<32}{}\n", name, explanation);
  return fmt::format("  {}\n{:34}{}\n", name, "", explanation);
}

// "-n,--max-tokens N [256]"; the argument without dashes for a `positional`.
std::string Entry(const OptionSpec& option, bool positional) {
  std::vector<std::string> names;
  if (positional) names.push_back(option.argument);
  if (!positional) {
    for (const std::string& name : option.short_names) names.push_back("-" + name);
    for (const std::string& name : option.long_names) names.push_back("--" + name);
  }
  std::string out = fmt::format("{}", fmt::join(names, ","));
  if (!option.type_name.empty()) out += " " + option.type_name;
  if (!option.default_text.empty()) out += " [" + option.default_text + "]";
  if (option.many) out += " ...";
  if (option.required) out += " REQUIRED";
  return Entry(out, option.help);
}

std::string Usage(const CommandSpec& command) {
  std::string out = fmt::format("Usage: {} [OPTIONS]", command.path());
  for (const auto& option : command.options) {
    if (option->argument.empty()) continue;
    const std::string name = option->argument + (option->many ? "..." : "");
    out += option->required ? " " + name : fmt::format(" [{}]", name);
  }
  if (!command.commands.empty()) out += " SUBCOMMAND";
  return out + "\n";
}

// In the order of their first options.
std::vector<std::string> Headings(const CommandSpec& command) {
  std::vector<std::string> headings;
  for (const auto& option : command.options) {
    if (std::find(headings.begin(), headings.end(), option->heading) == headings.end())
      headings.push_back(option->heading);
  }
  return headings;
}

}  // namespace

std::string HelpPage(const CommandSpec& command) {
  std::string out = command.help + "\n" + Usage(command);
  std::string section;
  for (const auto& option : command.options) {
    if (!option->argument.empty()) section += Entry(*option, true);
  }
  if (!section.empty()) out += "\nPositionals:\n" + section;
  for (const std::string& heading : Headings(command)) {
    section.clear();
    for (const auto& option : command.options) {
      if (option->has_dashes() && option->heading == heading) section += Entry(*option, false);
    }
    if (!section.empty()) out += fmt::format("\n{}:\n", heading) + section;
  }
  section.clear();
  for (const auto& inner : command.commands) section += Entry(inner->name, inner->help);
  if (!section.empty()) out += "\nSubcommands:\n" + section;
  return command.footer.empty() ? out : out + command.footer + "\n";  // it begins with a line break
}

}  // namespace loopspec::tools

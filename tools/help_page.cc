#include "tools/help_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <vector>

namespace loopspec::tools {
namespace {

constexpr size_t kColumn = 34;  // where explanations begin

// "loopspec experiment run".
std::string Path(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr ? app.get_name() : Path(*parent) + " " + app.get_name();
}

bool TakesMany(const CLI::Option* option) {
  return option->get_items_expected_max() > 1;
}

// A name, and beside it what it is; below it where the name is too long.
std::string Entry(const std::string& name, const std::string& explanation) {
  if (name.size() + 2 < kColumn) return fmt::format("  {:<32}{}\n", name, explanation);
  return fmt::format("  {}\n{:34}{}\n", name, "", explanation);
}

// "-n,--max-tokens N [256]"; the argument without dashes for a `positional`.
std::string Entry(const CLI::Option* option, bool positional) {
  std::vector<std::string> names;
  if (positional) names.push_back(option->get_name(true));
  if (!positional) {
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  std::string out = fmt::format("{}", fmt::join(names, ","));
  if (!option->get_type_name().empty()) out += " " + option->get_type_name();
  if (!option->get_default_str().empty()) out += " [" + option->get_default_str() + "]";
  if (TakesMany(option)) out += " ...";
  if (option->get_required()) out += " REQUIRED";
  return Entry(out, option->get_description());
}

std::string Usage(const CLI::App& app) {
  std::string out = fmt::format("Usage: {} [OPTIONS]", Path(app));
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) continue;
    const std::string name = option->get_name(true) + (TakesMany(option) ? "..." : "");
    out += option->get_required() ? " " + name : fmt::format(" [{}]", name);
  }
  if (!app.get_subcommands({}).empty()) out += " SUBCOMMAND";
  return out + "\n";
}

}  // namespace

std::string HelpPage(const CLI::App& app) {
  std::string out = app.get_description() + "\n" + Usage(app);
  std::string section;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) section += Entry(option, true);
  }
  if (!section.empty()) out += "\nPositionals:\n" + section;
  // The heading of options that have none of their own; what CLI11 calls it is not always the same.
  const std::string usual = app.get_help_ptr()->get_group();
  for (const std::string& heading : app.get_groups()) {
    section.clear();
    for (const CLI::Option* option : app.get_options()) {
      if (option->nonpositional() && option->get_group() == heading)
        section += Entry(option, false);
    }
    if (!section.empty())
      out += fmt::format("\n{}:\n", heading == usual ? "Options" : heading) + section;
  }
  section.clear();
  for (const CLI::App* command : app.get_subcommands({}))
    section += Entry(command->get_name(), command->get_description());
  if (!section.empty()) out += "\nSubcommands:\n" + section;
  const std::string footer = app.get_footer();  // begins with a line break
  return footer.empty() ? out : out + footer + "\n";
}

}  // namespace loopspec::tools

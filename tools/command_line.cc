#include "tools/command_line.h"

#include <CLI/CLI.hpp>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace loopspec::tools {
namespace {

// CLI11 keeps no list of what a check allows.
std::map<const CLI::Option*, std::vector<std::string>>& Choices() {
  static std::map<const CLI::Option*, std::vector<std::string>> choices;
  return choices;
}

}  // namespace

std::vector<std::string> ChoicesOf(const CLI::Option* option) {
  const auto found = Choices().find(option);
  return found == Choices().end() ? std::vector<std::string>() : found->second;
}

Option Option::Required() const {
  option_->required();
  return *this;
}
Option Option::Group(const std::string& heading) const {
  option_->group(heading);
  return *this;
}
Option Option::TypeName(const std::string& name) const {
  option_->type_name(name);
  return *this;
}
Option Option::ShowDefault() const {
  option_->capture_default_str();
  return *this;
}
Option Option::ShowDefault(const std::string& text) const {
  option_->default_str(text);
  return *this;
}
// Checks have an empty description: CLI11's own wording would stand in the help.
Option Option::Range(int64_t low, int64_t high) const {
  option_->check(CLI::Range(low, high).description(""));
  return *this;
}
Option Option::OneOf(std::initializer_list<std::string> values) const {
  Choices()[option_] = values;
  option_->check(CLI::IsMember(std::vector<std::string>(values)).description(""));
  return *this;
}
Option Option::Check(std::function<std::string(const std::string&)> complaint) const {
  option_->check(CLI::Validator(std::move(complaint), ""));
  return *this;
}
Option Option::OneValueEach() const {
  option_->take_all()->allow_extra_args(false);
  return *this;
}
size_t Option::Count() const {
  return option_->count();
}
std::string Option::Name() const {
  return option_->get_name();
}

Command Command::AddCommand(const std::string& name, const std::string& help) const {
  return {*app_->add_subcommand(name, help), model_named_};
}

void Command::RequireCommand() const {
  app_->require_subcommand(1);
}

template <typename T>
Option Command::AddOption(const std::string& names, T& value, const std::string& help) const {
  return Option(app_->add_option(names, value, help));
}
template Option Command::AddOption(const std::string&, std::string&, const std::string&) const;
template Option Command::AddOption(const std::string&, int&, const std::string&) const;
template Option Command::AddOption(const std::string&, std::optional<int>&,
                                   const std::string&) const;
template Option Command::AddOption(const std::string&, int64_t&, const std::string&) const;
template Option Command::AddOption(const std::string&, uint64_t&, const std::string&) const;
template Option Command::AddOption(const std::string&, float&, const std::string&) const;
template Option Command::AddOption(const std::string&, double&, const std::string&) const;
template Option Command::AddOption(const std::string&, std::vector<std::string>&,
                                   const std::string&) const;
template Option Command::AddOption(const std::string&, std::vector<int>&, const std::string&) const;

Option Command::AddModel(std::string& value, const std::string& help) const {
  return AddOption(model_named_ ? "--model,-m" : "--model,-m,MODEL", value, help).TypeName("DIR");
}
Option Command::AddFlag(const std::string& names, bool& value, const std::string& help) const {
  return Option(app_->add_flag(names, value, help));
}
void Command::SetFooter(const std::string& text) const {
  app_->footer(text);
}
void Command::SetAction(std::function<void()> action) const {
  app_->callback(std::move(action));
}

}  // namespace loopspec::tools

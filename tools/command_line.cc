#include "tools/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "tools/option_value.h"

namespace loopspec::tools {
namespace {

// CLI11 is given no checks of its own, so it does not know what an option takes.
std::map<const CLI::Option*, std::shared_ptr<OptionRule>>& Rules() {
  static std::map<const CLI::Option*, std::shared_ptr<OptionRule>> rules;
  return rules;
}

// What one value of a variable is, and what the help calls it and shows of it.
template <typename T>
struct Variable {
  using Value = T;
  static constexpr bool kMany = false;
  static std::string Shown(const T& value) { return fmt::format("{}", value); }
};
template <typename T>
struct Variable<std::optional<T>> {
  using Value = T;
  static constexpr bool kMany = false;
  static std::string Shown(const std::optional<T>& value) {
    return value ? fmt::format("{}", *value) : "";
  }
};
template <typename T>
struct Variable<std::vector<T>> {
  using Value = T;
  static constexpr bool kMany = true;
  static std::string Shown(const std::vector<T>& values) {
    return fmt::format("{}", fmt::join(values, ","));
  }
};

template <typename T>
constexpr const char* TypeNameOf() {
  if constexpr (std::is_floating_point_v<T>) return "FLOAT";
  if constexpr (std::is_unsigned_v<T>) return "UINT";
  return std::is_integral_v<T> ? "INT" : "TEXT";
}

// `names` with a function that reads the values. The function is called for values of variables as
// well as for those of the command line: checks that were CLI11's would be passed over there, since
// newer versions leave out variables whose values they refuse. With --help nothing is read.
template <typename Read>
CLI::Option* Add(CLI::App& app, const std::string& names, const std::string& help, Read read,
                 std::function<std::string()> shown = {}) {
  const auto rule = std::make_shared<OptionRule>();
  const auto self = std::make_shared<const CLI::Option*>();
  CLI::Option* option = app.add_option(
      names,
      // From the option, not as it is handed over: there "{}" is an empty list.
      [&app, rule, self, read](const CLI::results_t&) {
        if (app.get_help_ptr()->count() == 0) read(*rule, (*self)->results());
        return true;
      },
      help, false, std::move(shown));
  *self = option;
  rule->name = option->get_name();
  rule->may_be_empty = !option->nonpositional();
  Rules()[option] = rule;
  return option;
}

}  // namespace

std::vector<std::string> ChoicesOf(const CLI::Option* option) {
  const auto found = Rules().find(option);
  return found == Rules().end() ? std::vector<std::string>() : found->second->choices;
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
Option Option::Range(int64_t low, int64_t high) const {
  OptionRule& rule = *Rules().at(option_);
  rule.low = low;
  rule.high = static_cast<uint64_t>(high);
  rule.has_range = true;
  return *this;
}
Option Option::OneOf(const std::vector<std::string>& values) const {
  OptionRule& rule = *Rules().at(option_);
  rule.choices = values;
  rule.may_be_empty = false;
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
  using Value = typename Variable<T>::Value;
  const auto read = [&value](const OptionRule& rule, const std::vector<std::string>& texts) {
    if constexpr (Variable<T>::kMany) {
      T all(texts.size());
      for (size_t i = 0; i < texts.size(); ++i) ReadValue(rule, texts[i], all[i]);
      value = std::move(all);
    } else {
      if (texts.size() > 1) {
        throw BadValue(rule.name,
                       fmt::format("{} is given {} times, expected once", rule.name, texts.size()));
      }
      Value one{};
      ReadValue(rule, texts.at(0), one);
      value = std::move(one);
    }
  };
  CLI::Option* option =
      Add(*app_, names, help, read, [&value] { return Variable<T>::Shown(value); });
  option->type_name(TypeNameOf<Value>());
  if constexpr (Variable<T>::kMany) {
    option->expected(CLI::detail::expected_max_vector_size);
  } else {
    option->take_all();  // so that it is ours to say that one value is enough
  }
  if constexpr (std::is_integral_v<Value>) {
    OptionRule& rule = *Rules().at(option);
    rule.low = static_cast<int64_t>(std::numeric_limits<Value>::min());
    rule.high = static_cast<uint64_t>(std::numeric_limits<Value>::max());
  }
  return Option(option);
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
  const auto read = [&value](const OptionRule& rule, const std::vector<std::string>& texts) {
    ReadValue(rule, texts.back(), value);
  };
  CLI::Option* option = Add(*app_, names, help, read);
  option->take_last()->expected(0);  // which is all that a flag of CLI11's has
  return Option(option);
}
void Command::SetFooter(const std::string& text) const {
  app_->footer(text);
}
void Command::SetAction(std::function<void()> action) const {
  app_->callback(std::move(action));
}

}  // namespace loopspec::tools

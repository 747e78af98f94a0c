#include "tools/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "tools/command_spec.h"

namespace loopspec::tools {
namespace {

// What one value of a variable is, and what the help shows of it.
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
  return std::is_floating_point_v<T> ? "X" : std::is_integral_v<T> ? "N" : "TEXT";
}

// "--model,-m,MODEL".
OptionSpec& Add(CommandSpec& command, const std::string& names, const std::string& help) {
  OptionSpec& option = *command.options.emplace_back(std::make_unique<OptionSpec>());
  for (size_t begin = 0; begin < names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    if (name.starts_with("--"))
      option.long_names.push_back(name.substr(2));
    else if (name.starts_with("-"))
      option.short_names.push_back(name.substr(1));
    else
      option.argument = name;
    begin = end + 1;
  }
  option.help = help;
  option.rule.name = option.name();
  option.rule.may_be_empty = !option.has_dashes();
  return option;
}

}  // namespace

Option Option::Required() const {
  option_->required = true;
  return *this;
}
Option Option::Group(const std::string& heading) const {
  option_->heading = heading;
  return *this;
}
Option Option::TypeName(const std::string& name) const {
  option_->type_name = name;
  return *this;
}
Option Option::ShowDefault() const {
  option_->default_text = option_->shown();
  return *this;
}
Option Option::ShowDefault(const std::string& text) const {
  option_->default_text = text;
  return *this;
}
Option Option::Range(int64_t low, int64_t high) const {
  option_->rule.low = low;
  option_->rule.high = static_cast<uint64_t>(high);
  option_->rule.has_range = true;
  return *this;
}
Option Option::OneOf(const std::vector<std::string>& values) const {
  option_->rule.choices = values;
  option_->rule.may_be_empty = false;
  return *this;
}
Option Option::OneValueEach() const {
  option_->one_each = true;
  return *this;
}
Option Option::Alias(const std::string& name) const {
  option_->aliases.push_back(name);
  return *this;
}
Option Option::Examples(const std::vector<std::string>& values) const {
  option_->examples = values;
  return *this;
}
Option Option::CompletedBy(const std::string& words) const {
  option_->completer = words;
  return *this;
}
Option Option::OrElse(const std::vector<Option>& others) const {
  for (const Option& other : others) option_->others.push_back(other.option_);
  return *this;
}
size_t Option::Count() const {
  return option_->texts.size();
}
std::string Option::Name() const {
  return option_->name();
}

Command Command::AddCommand(const std::string& name, const std::string& help) const {
  CommandSpec& inner = *command_->commands.emplace_back(std::make_unique<CommandSpec>());
  inner.name = name;
  inner.help = help;
  inner.parent = command_;
  const Command handle(inner, model_named_);
  handle.AddHelp();
  return handle;
}

void Command::AddHelp() const {
  OptionSpec& option = Add(*command_, "--help,-h", "Print this help message and exit");
  option.flag = true;  // the parser answers it, and reads nothing then
}

template <typename T>
Option Command::AddOption(const std::string& names, T& value, const std::string& help) const {
  using Value = typename Variable<T>::Value;
  OptionSpec& option = Add(*command_, names, help);
  option.type_name = TypeNameOf<Value>();
  option.many = Variable<T>::kMany;
  option.shown = [&value] { return Variable<T>::Shown(value); };
  option.read = [&value](const OptionRule& rule, const std::vector<std::string>& texts) {
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
  if constexpr (std::is_integral_v<Value>) {
    option.rule.low = static_cast<int64_t>(std::numeric_limits<Value>::min());
    option.rule.high = static_cast<uint64_t>(std::numeric_limits<Value>::max());
  }
  return Option(&option);
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
  OptionSpec& option = Add(*command_, names, help);
  option.flag = true;
  option.read = [&value](const OptionRule& rule, const std::vector<std::string>& texts) {
    ReadValue(rule, texts.back(), value);
  };
  return Option(&option);
}
Command Command::Alias(const std::string& name) const {
  command_->aliases.push_back(name);
  return *this;
}
void Command::SetFooter(const std::string& text) const {
  command_->footer = text;
}
void Command::SetAction(std::function<void()> action) const {
  command_->action = std::move(action);
}

}  // namespace loopspec::tools

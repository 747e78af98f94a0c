#include "tools/settings.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <set>
#include <string_view>

#include "base/environment.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "base/trimmed.h"
#include "tools/command_spec.h"

namespace loopspec::tools {
namespace {

constexpr const char* kKey = "api-key";  // read by serve itself, beside those of the command line

// Long names of a command's options and of its commands' options.
std::set<std::string> OptionNames(const CommandSpec& command) {
  std::set<std::string> names;
  for (const auto& option : command.options) {
    if (!option->long_names.empty()) names.insert(option->long_names[0]);
  }
  for (const auto& inner : command.commands) names.merge(OptionNames(*inner));
  names.erase("help");
  names.erase("version");
  return names;
}

void NameVariables(CommandSpec& command) {
  for (const auto& option : command.options) {
    if (option->long_names.empty()) continue;
    const std::string& name = option->long_names[0];
    if (name != "help" && name != kKey) option->variable = VariableOf(name);
  }
  for (const auto& inner : command.commands) NameVariables(*inner);
}

struct Setting {
  std::string section, key, value, where;
};

std::vector<Setting> ReadFileSettings(const std::string& path) {
  std::vector<Setting> settings;
  const std::string file = ReadFile(path, 1 << 20);
  std::string section;
  size_t begin = 0;
  for (int number = 1; begin < file.size(); ++number) {
    const size_t end = std::min(file.find('\n', begin), file.size());
    const std::string_view line = Trimmed(std::string_view(file).substr(begin, end - begin));
    begin = end + 1;
    const std::string where = fmt::format("{}, line {}", path, number);
    if (line.empty() || line[0] == '#' || line[0] == ';') continue;
    if (line[0] == '[') {
      if (line.back() != ']') Fail("{}: expected [COMMAND], found {}", where, line);
      section = Trimmed(line.substr(1, line.size() - 2));
      settings.push_back({section, "", "", where});
      continue;
    }
    const size_t equals = line.find('=');
    if (equals == line.npos) Fail("{}: expected OPTION = VALUE, found {}", where, line);
    std::string_view value = Trimmed(line.substr(equals + 1));
    if (value.size() > 1 && value.front() == '"' && value.back() == '"')
      value = value.substr(1, value.size() - 2);
    std::string key(Trimmed(line.substr(0, equals)));
    std::replace(key.begin(), key.end(), '_', '-');  // max_tokens, as Python and HTTP call it
    settings.push_back({section, key, std::string(value), where});
  }
  return settings;
}

}  // namespace

std::string VariableOf(const std::string& long_name) {
  std::string out = "LOOPSPEC_";
  for (const char c : long_name)
    out += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

std::string ConfigFile() {
  if (std::getenv("LOOPSPEC_CONFIG") != nullptr) return Environment("LOOPSPEC_CONFIG");
  const std::filesystem::path folder = UserFolder("XDG_CONFIG_HOME", ".config");
  return folder.empty() ? "" : (folder / "loopspec/config").string();
}

std::map<std::string, std::string> ReadSettings(CommandSpec& app, const std::string& command) {
  if (CommandSpec* chosen = app.Find(command); chosen != nullptr) NameVariables(*chosen);
  std::map<std::string, std::string> origin;
  const std::string path = ConfigFile();
  std::error_code ignored;
  const bool named = std::getenv("LOOPSPEC_CONFIG") != nullptr;
  if (path.empty() || (!named && !std::filesystem::is_regular_file(path, ignored))) return origin;
  std::vector<Setting> settings = ReadFileSettings(path);
  for (const Setting& setting : settings) {
    const CommandSpec* of = setting.section.empty() ? &app : app.Find(setting.section);
    if (of == nullptr) Fail("{}: there is no command {}", setting.where, setting.section);
    if (setting.key.empty()) continue;  // the line of a section
    if (!OptionNames(*of).contains(setting.key)) {
      Fail("{}: {} is no option of {}", setting.where, setting.key,
           setting.section.empty() ? "any command" : "loopspec " + setting.section);
    }
    if (setting.value.empty()) Fail("{}: {} has no value", setting.where, setting.key);
  }
  // Settings of the command come before those of all commands; a later line before an earlier one.
  std::reverse(settings.begin(), settings.end());
  std::stable_partition(settings.begin(), settings.end(),
                        [](const Setting& setting) { return !setting.section.empty(); });
  for (const Setting& setting : settings) {
    if (setting.key.empty() || (!setting.section.empty() && setting.section != command)) continue;
    const std::string variable = VariableOf(setting.key);
    if (!Environment(variable.c_str()).empty()) continue;
    setenv(variable.c_str(), setting.value.c_str(), 1);
    origin[variable] = setting.where;
  }
  return origin;
}

}  // namespace loopspec::tools

#include "tools/parse_words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <map>
#include <utility>

#include "tools/suggest.h"

namespace loopspec::tools {
namespace {

// Whether a word is an option rather than a value. A single dash is standard input, and -5 a
// number.
bool LooksLikeOption(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && !(word[1] >= '0' && word[1] <= '9');
}

// What people type who know other programs, and what to do here instead.
constexpr std::pair<const char*, const char*> kForeignCommands[] = {
    {"ps",
     "nothing runs in the background: a model runs as long as its command does; `loopspec "
     "list` shows the models that are here"},
    {"stop", "nothing runs in the background: Ctrl-C ends a command"},
    {"create",
     "a folder of a checkpoint is a model as it is; `loopspec quantize` makes smaller ones"},
    {"push", "nothing is uploaded from here"},
};
constexpr std::pair<const char*, const char*> kForeignOptions[] = {
    {"--ctx-size",
     "the context is the model's; --kv-memory says how much memory keys and values may take"},
    {"-c", "the context is the model's; --kv-memory says how much memory keys and values may take"},
    {"--max-model-len",
     "the context is the model's; --kv-memory says how much memory keys and values may take"},
    {"--n-gpu-layers", "--device cuda puts the whole model on the GPU"},
    {"-ngl", "--device cuda puts the whole model on the GPU"},
    {"--tensor-parallel-size", "a process uses one GPU"},
    {"--gpu-memory-utilization",
     "--kv-memory 80% takes that share of what is free beside the weights"},
    {"--hf-repo", "name the model as ORG/NAME"},
    {"-hf", "name the model as ORG/NAME"},
};

template <size_t kCount>
std::string Foreign(const std::pair<const char*, const char*> (&known)[kCount],
                    const std::string& name) {
  for (const auto& [theirs, ours] : known) {
    if (name == theirs) return ours;
  }
  return "";
}

std::string UnknownCommand(const CommandSpec& app, const std::string& name) {
  if (const std::string ours = Foreign(kForeignCommands, name);
      app.parent == nullptr && !ours.empty())
    return fmt::format("unknown command {}: {}", name, ours);
  std::vector<std::string> names, known;
  for (const auto& command : app.commands) {
    names.push_back(command->name);
    known.push_back(command->name);
    known.insert(known.end(), command->aliases.begin(), command->aliases.end());
  }
  const bool option = LooksLikeOption(name);
  const std::string near = option ? "" : Nearest(name, known);
  const std::string path = app.parent == nullptr ? "" : app.name + " ";
  const std::string found = option         ? "no command before " + name
                            : name.empty() ? "no command given"
                                           : "unknown command " + path + name;
  return fmt::format("{}, expected one of {} (see loopspec {}--help){}", found,
                     fmt::join(names, ", "), path,
                     near.empty() ? "" : fmt::format(": did you mean {}?", near));
}

// Whether a variable or the settings name the model, and the first argument is no folder or file of
// one.
bool IsNoModel(const OptionSpec& model) {
  const char* set = model.variable.empty() ? nullptr : std::getenv(model.variable.c_str());
  if (!model.without_dashes || set == nullptr || *set == '\0') return false;
  std::error_code error;
  const std::string& word = model.texts[0];
  return !std::filesystem::is_directory(word, error) && !word.ends_with(".gguf");
}

// Takes the words of one command apart, from the first to the last.
class Reader {
 public:
  Reader(CommandSpec& command, const std::vector<std::string>& words)
      : command_(command), words_(words.begin(), words.end()) {}

  // False: --help was among them.
  bool Read() {
    while (!words_.empty()) {
      const std::string word = Take();
      if (word == "--" && !only_arguments_)
        only_arguments_ = true;
      else if (only_arguments_ || !LooksLikeOption(word))
        TakeArgument(word);
      else if (word == "--help" || word == "-h")
        return false;
      else if (word.starts_with("--"))
        TakeLong(word);
      else
        TakeShort(word);
    }
    LeaveModelToItsVariable();
    return true;
  }
  // What fits nowhere.
  const std::vector<std::string>& rest() const { return rest_; }

 private:
  std::string Take() {
    std::string word = std::move(words_.front());
    words_.pop_front();
    return word;
  }

  // --help reads nothing, and is found before.
  OptionSpec* Find(const std::string& name, std::vector<std::string> OptionSpec::*names) const {
    for (const auto& option : command_.options) {
      if (!option->read) continue;
      const std::vector<std::string>& known = (*option).*names;
      if (std::find(known.begin(), known.end(), name) != known.end()) return option.get();
      const std::string alias = (names == &OptionSpec::long_names ? "--" : "-") + name;
      const std::vector<std::string>& also = option->aliases;
      if (std::find(also.begin(), also.end(), alias) != also.end()) return option.get();
    }
    return nullptr;
  }

  void TakeLong(const std::string& word) {
    const size_t equals = word.find('=');
    OptionSpec* option =
        Find(word.substr(2, equals == word.npos ? word.npos : equals - 2), &OptionSpec::long_names);
    if (option == nullptr) return rest_.push_back(word);
    if (equals != word.npos)
      option->texts.push_back(word.substr(equals + 1));
    else
      TakeValues(*option);
  }

  // -n5, -n 5, -n; of flags -ab as well, which is -a and -b.
  void TakeShort(const std::string& word) {
    if (word.size() > 2 && !Foreign(kForeignOptions, word).empty()) return rest_.push_back(word);
    OptionSpec* option = Find(word.substr(1, 1), &OptionSpec::short_names);
    if (option == nullptr) return rest_.push_back(word);
    const std::string more = word.substr(2);
    if (more.empty()) return TakeValues(*option);
    if (!option->flag) return option->texts.push_back(more);
    TakeValues(*option);
    words_.push_front("-" + more);
  }

  void TakeValues(OptionSpec& option) {
    if (option.flag) return option.texts.push_back("true");
    if (words_.empty()) throw UsageError(option.name() + " needs a value");
    option.texts.push_back(Take());  // whatever it looks like
    if (!option.many || option.one_each) return;
    while (words_.size() > MissingArguments() && !LooksLikeOption(words_.front()))
      option.texts.push_back(Take());
  }

  // Required arguments without dashes that are still to come.
  size_t MissingArguments() const {
    return static_cast<size_t>(
        std::count_if(command_.options.begin(), command_.options.end(), [](const auto& option) {
          return option->required && !option->argument.empty() && option->texts.empty();
        }));
  }

  void TakeArgument(const std::string& word) {
    for (const auto& option : command_.options) {
      if (option->argument.empty() || (!option->many && !option->texts.empty())) continue;
      option->texts.push_back(word);
      option->without_dashes = true;
      return;
    }
    rest_.push_back(word);
  }

  // With a model from a variable or the settings, a single argument is what comes after the model:
  // a prompt. Folders and files of weights stay models.
  void LeaveModelToItsVariable() {
    OptionSpec* model = nullptr;
    for (const auto& option : command_.options) {
      if (option->argument == "MODEL") {
        if (!IsNoModel(*option)) return;
        model = option.get();
      } else if (model != nullptr && !option->argument.empty()) {
        const auto given = [](const OptionSpec* other) { return !other->texts.empty(); };
        if (given(option.get()) || std::any_of(option->others.begin(), option->others.end(), given))
          return;
        option->texts = std::exchange(model->texts, {});
        return;
      }
    }
  }

  CommandSpec& command_;
  std::deque<std::string> words_;
  std::vector<std::string> rest_;
  bool only_arguments_ = false;
};

// "unknown option --devic, did you mean --device?", or of a stray word that is no option.
std::string Unexpected(const CommandSpec& command, const std::vector<std::string>& rest) {
  for (const std::string& word : rest) {
    if (!LooksLikeOption(word)) continue;
    const std::string name = word.substr(0, word.find('='));
    if (const std::string ours = Foreign(kForeignOptions, name); !ours.empty())
      return fmt::format("unknown option {}: {}", name, ours);
    std::vector<std::string> known;
    std::map<std::string, std::string> own;  // of a name that another program has
    for (const auto& option : command.options) {
      for (const std::string& other : option->long_names) known.push_back("--" + other);
      for (const std::string& other : option->aliases) {
        known.push_back(other);
        own[other] = option->name();
      }
    }
    const std::string near = Nearest(name, known);
    if (near.empty()) return fmt::format("unknown option {}", name);
    return fmt::format("unknown option {}, did you mean {}?", name,
                       own.contains(near) ? own[near] : near);
  }
  // A text of several words that the shell took apart; its first word may stand where a model does.
  std::string text;
  for (const auto& option : command.options) {
    if (option->argument == "MODEL" && IsNoModel(*option)) text = option->texts[0] + " ";
    if (option->argument.empty() || option->argument == "MODEL" || !option->without_dashes ||
        option->many || !option->rule.choices.empty())
      continue;
    return fmt::format("unexpected argument {}: a text of several words stands in quotes, \"{}\"",
                       fmt::join(rest, " "),
                       fmt::format("{}{} {}", text, option->texts[0], fmt::join(rest, " ")));
  }
  return fmt::format("unexpected argument {}", fmt::join(rest, " "));
}

}  // namespace

CommandSpec& FindCommand(CommandSpec& app, const std::vector<std::string>& words, size_t& used) {
  CommandSpec* command = &app;
  for (used = 0; !command->commands.empty(); ++used) {
    const std::string word = used < words.size() ? words[used] : "";
    if (word == "--help" || word == "-h" || (command == &app && word == "--version")) break;
    CommandSpec* inner = command->Find(word);
    if (inner == nullptr) throw Error(UnknownCommand(*command, word));
    command = inner;
  }
  return *command;
}

bool ReadWords(CommandSpec& command, const std::vector<std::string>& words) {
  Reader reader(command, words);
  if (!reader.Read()) return false;
  for (const auto& option : command.options) {
    const char* const value =
        option->variable.empty() ? nullptr : std::getenv(option->variable.c_str());
    if (option->texts.empty() && value != nullptr && *value != '\0') {
      option->texts.emplace_back(value);
      option->from_variable = true;
    }
    if (!option->texts.empty()) option->read(option->rule, option->texts);
  }
  for (const auto& option : command.options) {
    if (option->required && option->texts.empty())
      throw UsageError(option->name() + " is required");
  }
  if (!reader.rest().empty()) throw UsageError(Unexpected(command, reader.rest()));
  return true;
}

}  // namespace loopspec::tools

#include "tools/command_docs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tools/command_spec.h"
#include "tools/settings.h"

namespace loopspec::tools {
namespace {

// A command by its path: "generate", "experiment run".
struct Described {
  std::string path;
  const CommandSpec* app;
};

void Collect(const CommandSpec& app, const std::string& before, std::vector<Described>& out) {
  for (const auto& command : app.commands) {
    out.push_back({before + command->name, command.get()});
    Collect(*command, out.back().path + " ", out);
  }
}

std::vector<Described> Commands(const CommandSpec& app) {
  std::vector<Described> out;
  Collect(app, "", out);
  return out;
}

// Options with dashes, in the order in which they were added.
std::vector<const OptionSpec*> Options(const CommandSpec& app) {
  std::vector<const OptionSpec*> out;
  for (const auto& option : app.options) {
    if (option->has_dashes()) out.push_back(option.get());
  }
  return out;
}

// What may follow it, as far as that is a list.
const std::vector<std::string>& Values(const OptionSpec* option) {
  return option->rule.choices.empty() ? option->examples : option->rule.choices;
}

// Arguments without dashes of a command: the values that completions offer, and the words of a
// command that prints more.
std::pair<std::vector<std::string>, std::string> ArgumentValues(const CommandSpec& command) {
  std::pair<std::vector<std::string>, std::string> out;
  for (const auto& option : command.options) {
    if (option->argument.empty()) continue;
    const std::vector<std::string>& values = Values(option.get());
    out.first.insert(out.first.end(), values.begin(), values.end());
    if (!option->completer.empty()) out.second = option->completer;
  }
  return out;
}

// "--model", "-m".
std::vector<std::string> Spellings(const OptionSpec* option) {
  std::vector<std::string> out;
  for (const std::string& name : option->long_names) out.push_back("--" + name);
  for (const std::string& name : option->short_names) out.push_back("-" + name);
  return out;
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

// ---- Completions

void PrintBash(const CommandSpec& app) {
  fmt::print(R"(# bash completion for loopspec, made by `loopspec completion bash`.
_loopspec() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} command=${{COMP_WORDS[1]}} words=
  COMPREPLY=()
  [ "$COMP_CWORD" -gt 1 ] || command=
)");
  for (const auto& [path, command] : Commands(app)) {
    const size_t space = path.find(' ');
    if (space != path.npos)
      fmt::print(
          "  [ \"$COMP_CWORD\" -gt 2 ] && [ \"$command ${{COMP_WORDS[2]}}\" = \"{}\" ] && "
          "command=\"{}\"\n",
          path, path);
  }
  fmt::print("  case \"$command $prev\" in\n");
  for (const auto& [path, command] : Commands(app)) {
    for (const OptionSpec* option : Options(*command)) {
      const std::vector<std::string>& choices = Values(option);
      if (option->flag) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : Spellings(option))
        patterns.push_back(fmt::format("\"{} {}\"", path, name));
      // Without a list: files, as the shell completes them.
      fmt::print(
          "    {}) words=\"{}\"; [ -z \"$words\" ] && return; COMPREPLY=($(compgen -W "
          "\"$words\" -- \"$cur\")); return ;;\n",
          fmt::join(patterns, " | "), fmt::join(choices, " "));
    }
  }
  fmt::print("  esac\n  case \"$command\" in\n");
  std::vector<std::string> top;
  for (const auto& [path, command] : Commands(app)) {
    std::vector<std::string> words;
    for (const auto& inner_command : command->commands) words.push_back(inner_command->name);
    for (const OptionSpec* option : Options(*command)) {
      for (const std::string& name : Spellings(option)) words.push_back(name);
    }
    fmt::print("    \"{}\") words=\"{}\" ;;\n", path, fmt::join(words, " "));
    if (path.find(' ') == path.npos) top.push_back(path);
  }
  fmt::print(R"(    "" | help) words="{} help --help --version" ;;
  esac
  if [[ $cur != -* ]]; then
    case "$command" in
)",
             fmt::join(top, " "));
  for (const auto& [path, command] : Commands(app)) {
    const auto [values, completer] = ArgumentValues(*command);
    if (values.empty() && completer.empty()) continue;
    fmt::print("      \"{}\") COMPREPLY=($(compgen -W \"{}{}\" -- \"$cur\")); return ;;\n", path,
               fmt::join(values, " "),
               completer.empty() ? "" : fmt::format("$(loopspec {} 2>/dev/null)", completer));
  }
  fmt::print(R"(    esac
  fi
  # Words that begin with a dash, names of commands; else files.
  [[ $cur == -* || -z $command || $command == help || $command == experiment ]] || return
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _loopspec loopspec
)");
}

std::string ZshText(const std::string& text) {
  std::string out = Replaced(text, "\\", "\\\\");
  out = Replaced(Replaced(out, "[", "\\["), "]", "\\]");
  return Replaced(Replaced(out, ":", "\\:"), "'", "'\\''");
}

void PrintZsh(const CommandSpec& app) {
  fmt::print(
      "#compdef loopspec\n# zsh completion for loopspec, made by `loopspec completion zsh`.\n"
      "_loopspec() {{\n  local -a commands\n  commands=(\n");
  for (const auto& [path, command] : Commands(app)) {
    if (path.find(' ') == path.npos) fmt::print("    '{}:{}'\n", path, ZshText(command->help));
  }
  fmt::print(
      "    'help:Show the help of a command'\n  )\n"
      "  if (( CURRENT == 2 )); then\n    _describe command commands\n    return\n  fi\n"
      "  local command=$words[2]\n");
  for (const auto& [path, command] : Commands(app)) {
    const size_t space = path.find(' ');
    if (space != path.npos)
      fmt::print("  [[ $command == {} && $words[3] == {} ]] && command='{}'\n",
                 path.substr(0, space), path.substr(space + 1), path);
  }
  fmt::print("  case $command in\n");
  for (const auto& [path, command] : Commands(app)) {
    fmt::print("    '{}')\n      _arguments -S", path);
    for (const OptionSpec* option : Options(*command)) {
      std::string value;
      if (!option->flag) {
        const std::vector<std::string>& choices = Values(option);
        value =
            choices.empty() ? ":value:_files" : fmt::format(":value:({})", fmt::join(choices, " "));
      }
      for (const std::string& name : Spellings(option))
        fmt::print(" \\\n        '*{}[{}]{}'", name, ZshText(option->help), value);
    }
    std::vector<std::string> inner;
    for (const auto& one : command->commands) inner.push_back(one->name);
    const auto [values, completer] = ArgumentValues(*command);
    if (!values.empty() || !completer.empty())
      fmt::print(" \\\n        '*:value:({}{})' ;;\n", fmt::join(values, " "),
                 completer.empty()
                     ? ""
                     : fmt::format("${{(f)\"$(loopspec {} 2>/dev/null)\"}}", completer));
    else if (inner.empty())
      fmt::print(" \\\n        '*:file:_files' ;;\n");
    else
      fmt::print(" \\\n        '*:command:({})' ;;\n", fmt::join(inner, " "));
  }
  fmt::print("    help) _describe command commands ;;\n  esac\n}}\n_loopspec \"$@\"\n");
}

std::string FishText(const std::string& text) {
  return Replaced(Replaced(text, "\\", "\\\\"), "'", "\\'");
}

void PrintFish(const CommandSpec& app) {
  fmt::print("# fish completion for loopspec, made by `loopspec completion fish`.\n");
  for (const auto& [path, command] : Commands(app)) {
    const size_t space = path.find(' ');
    if (space == path.npos) {
      fmt::print("complete -c loopspec -n __fish_use_subcommand -f -a {} -d '{}'\n", path,
                 FishText(command->help));
    } else {
      fmt::print("complete -c loopspec -n '__fish_seen_subcommand_from {}' -f -a {} -d '{}'\n",
                 path.substr(0, space), path.substr(space + 1), FishText(command->help));
    }
    const std::string last = space == path.npos ? path : path.substr(space + 1);
    for (const OptionSpec* option : Options(*command)) {
      fmt::print("complete -c loopspec -n '__fish_seen_subcommand_from {}'", last);
      for (const std::string& name : option->long_names) fmt::print(" -l {}", name);
      for (const std::string& name : option->short_names) fmt::print(" -s {}", name);
      if (!option->flag) fmt::print(" -r");
      if (const std::vector<std::string>& choices = Values(option); !choices.empty())
        fmt::print(" -f -a '{}'", fmt::join(choices, " "));
      fmt::print(" -d '{}'\n", FishText(option->help));
    }
    const auto [values, completer] = ArgumentValues(*command);
    if (!values.empty() || !completer.empty())
      fmt::print("complete -c loopspec -n '__fish_seen_subcommand_from {}' -f -a '{}{}'\n", last,
                 fmt::join(values, " "),
                 completer.empty() ? "" : fmt::format("(loopspec {} 2>/dev/null)", completer));
  }
  fmt::print(
      "complete -c loopspec -n __fish_use_subcommand -f -a help -d 'Show the help of a "
      "command'\n");
}

// ---- The manual page

// Text in roff: no line may begin with a dot or a quote, dashes stay dashes.
std::string Roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out;
}

void PrintOptions(const CommandSpec& command) {
  for (const auto& option : command.options) {
    const std::vector<std::string> names = Spellings(option.get());
    const std::string value = !option->flag ? option->type_name : "";
    if (names.empty()) {
      fmt::print(".TP\n.I {}\n", Roff(option->name()));
    } else {
      fmt::print(".TP\n.B {}{}\n", Roff(fmt::format("{}", fmt::join(names, ", "))),
                 value.empty() ? "" : " " + Roff(value));
    }
    std::string text = option->help;
    if (!option->default_text.empty()) text += fmt::format(" (default: {})", option->default_text);
    if (const auto& choices = option->rule.choices; !choices.empty())
      text += fmt::format(" [{}]", fmt::join(choices, ", "));
    fmt::print("{}\n", Roff(text));
  }
}

void PrintManual(const CommandSpec& app) {
  fmt::print(
      ".TH LOOPSPEC 1 \"\" \"loopspec {}\" \"User Commands\"\n.SH NAME\nloopspec \\- fast, "
      "lossless "
      "inference for looped transformers\n.SH SYNOPSIS\n.B loopspec\n.I COMMAND\n[\\fIMODEL\\fR] "
      "[\\fIOPTIONS\\fR]\n.SH DESCRIPTION\n",
      LOOPSPEC_VERSION);
  const std::string description = app.help;
  fmt::print("{}\n", Roff(description.substr(0, description.find("\n\nStart here"))));
  fmt::print(
      ".PP\nA model may be named by \\fB\\-\\-model\\fR, or be the first argument after the "
      "command.\n.SH COMMANDS\n");
  for (const auto& [path, command] : Commands(app)) {
    fmt::print(".SS loopspec {}\n{}.\n", path, Roff(command->help));
    PrintOptions(*command);
    if (const std::string& footer = command->footer; !footer.empty())
      fmt::print(".PP\n.nf\n{}\n.fi\n", Roff(footer.substr(footer.find_first_not_of('\n'))));
  }
  fmt::print(
      ".SH ENVIRONMENT\nEvery option has a variable: \\fB{}\\fR is \\-\\-max\\-tokens. The command "
      "line comes before the\nenvironment, and the environment before the file.\n.TP\n.B "
      "LOOPSPEC_CONFIG\nThe file of settings to read instead; empty: none.\n.TP\n.B "
      "LOOPSPEC_API_KEY\nA key that clients of \\fBserve\\fR must have.\n.TP\n.B HF_HUB_CACHE, "
      "HF_HOME\nWhere downloaded models lie.\n.TP\n.B HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE\n"
      "The Hub that \\fBpull\\fR asks, the token for private models, and 1 to ask nobody.\n.TP\n.B "
      "NO_COLOR\nNo colours.\n",
      VariableOf("max-tokens"));
  fmt::print(
      ".SH FILES\n.TP\n.I ~/.config/loopspec/config\nSettings: lines \\fIoption\\fR = "
      "\\fIvalue\\fR, for all commands or below [\\fIcommand\\fR].\n.TP\n.I "
      "~/.local/state/loopspec/chat_history\nWhat was typed in \\fBchat\\fR.\n"
      ".SH EXIT STATUS\n0 when all went well, 2 for bad input, 130 after Ctrl\\-C.\n");
}

}  // namespace

void AddDocsCommands(CommandSpec& app, Command root) {
  const auto shell = std::make_shared<std::string>();
  const Command completion =
      root.AddCommand("completion", "Print a completion script for bash, zsh or fish");
  completion.AddOption("SHELL", *shell, "bash, zsh or fish")
      .Required()
      .OneOf({"bash", "zsh", "fish"});
  completion.SetFooter(
      "\nExamples:\n"
      "  loopspec completion bash > ~/.local/share/bash-completion/completions/loopspec\n"
      "  loopspec completion zsh > ~/.zfunc/_loopspec\n"
      "  loopspec completion fish > ~/.config/fish/completions/loopspec.fish");
  completion.SetAction([&app, shell] {
    if (*shell == "bash") return PrintBash(app);
    if (*shell == "zsh") return PrintZsh(app);
    PrintFish(app);
  });
  const Command manual = root.AddCommand("man", "Print the manual page, for man -l");
  manual.SetFooter("\nExample:\n  loopspec man | man -l -");
  manual.SetAction([&app] { PrintManual(app); });
}

}  // namespace loopspec::tools

// loopspec: one binary, many commands.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/printable.h"
#include "tools/command_docs.h"
#include "tools/commands.h"
#include "tools/help_page.h"
#include "tools/interrupt.h"
#include "tools/offer_pull.h"
#include "tools/option_value.h"
#include "tools/provenance.h"
#include "tools/settings.h"
#include "tools/suggest.h"

namespace {

constexpr const char* kDescription =
    "loopspec: lossless, fast inference for looped transformers (Ouro, Nanbeige, Raven, "
    "Huginn).\n\n"
    "A looped transformer runs one stack of blocks R times per token. LoopSpec lets an early "
    "recurrence draft the next\n"
    "token and verifies at the last: the text is exactly the model's own, several times sooner.\n\n"
    "Start here:\n"
    "  loopspec generate models/ouro-demo \"Tell me a story about a cat.\" --chat\n"
    "  loopspec chat models/ouro-demo\n"
    "  loopspec help generate";

constexpr const char* kFooter =
    "\nEvery option can be set by a variable (LOOPSPEC_MODEL, LOOPSPEC_MAX_TOKENS, ...) or in "
    "~/.config/loopspec/config:\n"
    "lines such as `model = models/ouro-demo`, below [serve] for one command.";

constexpr int kBadInput = 2;

// Files and arguments speak in messages: what they say is made safe for the terminal.
int Complain(std::string message) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  std::fflush(stdout);
  std::fprintf(stderr, "loopspec: %s\n", loopspec::Printable(message).c_str());
  return kBadInput;
}

// As after `loopspec ... | head -1`: the reader has what it wanted.
bool ReaderIsGone() {
  pollfd out = {STDOUT_FILENO, POLLOUT, 0};
  return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

// Results that did not reach standard output are an error, whatever command wrote them.
int Finish() {
  errno = 0;
  const int code = loopspec::tools::Interrupted() ? loopspec::tools::kInterruptedExit : 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  if (ReaderIsGone()) return code;
  return Complain(fmt::format("cannot write to standard output{}",
                              errno != 0 ? fmt::format(": {}", std::strerror(errno)) : ""));
}

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

// `path`: the commands before it, each with a space behind.
std::string UnknownCommand(const CLI::App& app, const std::string& name,
                           const std::string& path = "") {
  const std::vector<std::string> names = CommandNames(app);
  const std::string near = loopspec::tools::Nearest(name, names);
  return fmt::format("{}, expected one of {} (see loopspec {}--help){}",
                     name.empty() ? "no command given" : "unknown command " + path + name,
                     fmt::join(names, ", "), path,
                     near.empty() ? "" : fmt::format(": did you mean {}?", near));
}

// What is wrong with the words that name commands; nothing when they do. Before --help behind them
// is looked at, and before CLI11 takes --generate.json for an option of generate, as some versions
// do.
std::string WrongCommand(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* command = &app;
  std::string path;
  for (const std::string& word : words) {
    if (command->get_subcommands({}).empty() || word == "--help" || word == "-h") break;
    if (command == &app && word == "--version") break;
    const std::vector<std::string> names = CommandNames(*command);
    if (std::find(names.begin(), names.end(), word) == names.end())
      return UnknownCommand(*command, word, path);
    command = command->get_subcommand(word);
    path += word + " ";
  }
  return "";
}

// "unknown option --devic, did you mean --device?", or of a stray word that is no option. Words
// behind -- that the command has no use for are left to the application.
std::string Unexpected(const CLI::App& app, const CLI::App& command) {
  std::vector<std::string> rest = app.remaining(/*recurse=*/true);
  std::erase(rest, "--");
  for (const std::string& word : rest) {
    if (word.size() < 2 || word[0] != '-') continue;
    const std::string name = word.substr(0, word.find('='));
    std::vector<std::string> known;
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& other : option->get_lnames()) known.push_back("--" + other);
    }
    const std::string near = loopspec::tools::Nearest(name, known);
    return fmt::format("unknown option {}{}", name,
                       near.empty() ? "" : fmt::format(", did you mean {}?", near));
  }
  return fmt::format("unexpected argument {}", fmt::join(rest, " "));
}

std::string Missing(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_required() && option->count() == 0) return option->get_name() + " is required";
  }
  return "an option is missing";
}

// Only the last word can be an option whose value is not there.
std::string WithoutValue(const CLI::App& command, const std::vector<std::string>& words) {
  std::string name = words.empty() ? "an option" : words.back();
  name = name.substr(0, name.find('='));
  const CLI::Option* option = command.get_option_no_throw(name);
  return (option == nullptr ? name : option->get_name()) + " needs a value";
}

using Origins = std::map<std::string, std::string>;  // variable -> file and line

// Where a value came from that the command line does not have.
std::string Origin(const CLI::App& command, const std::string& name, const Origins& origins,
                   const std::vector<std::string>& words) {
  const CLI::Option* option = command.get_option_no_throw(name);
  if (option == nullptr || option->get_envname().empty()) return "";
  for (const std::string& word : words) {
    for (const std::string& known : option->get_lnames())
      if (word == "--" + known || word.starts_with("--" + known + "=")) return "";
    for (const std::string& known : option->get_snames())
      if (word.starts_with("-" + known)) return "";
  }
  if (const char* value = std::getenv(option->get_envname().c_str());
      value == nullptr || *value == '\0')
    return "";
  const auto found = origins.find(option->get_envname());
  return " in " + (found == origins.end() ? option->get_envname() : found->second);
}

// The command that was given, or the command of that command, with its path: "experiment run".
std::pair<const CLI::App*, std::string> Chosen(const CLI::App& app) {
  const CLI::App* command = &app;
  std::string path;
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands()[0];
    path += (path.empty() ? "" : " ") + command->get_name();
  }
  return {command, path};
}

// What is wrong with the command line, in one sentence, and where to read more. By the kind of the
// error and by what was parsed: CLI11's own words are different in each version.
std::string Explain(const CLI::App& app, const CLI::ParseError& error,
                    const std::vector<std::string>& words) {
  const auto [command, path] = Chosen(app);
  if (!command->get_subcommands({}).empty())
    return UnknownCommand(*command, "", path.empty() ? "" : path + " ");
  std::string message = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) message = Unexpected(app, *command);
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) message = Missing(*command);
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr)
    message = WithoutValue(*command, words);
  return fmt::format("{} (see loopspec {} --help)", message, path);
}

std::string Explain(const CLI::App& app, const loopspec::tools::BadValue& error,
                    const Origins& origins, const std::vector<std::string>& words) {
  const auto [command, path] = Chosen(app);
  return fmt::format("{}{} (see loopspec {} --help)", error.what(),
                     Origin(*command, error.option(), origins, words), path);
}

class HelpFormatter : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* app, std::string, CLI::AppFormatMode) const override {
    return loopspec::tools::HelpPage(*app);
  }
};

// `loopspec help` and `loopspec help COMMAND` are --help.
void TurnHelpAround(std::vector<std::string>& words) {
  if (words.empty() || words[0] != "help") return;
  words.erase(words.begin());
  words.push_back("--help");
}

bool NamesModel(const std::vector<std::string>& words) {
  return std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return word == "--model" || word.starts_with("--model=") ||
           (word.starts_with("-m") && !word.starts_with("--"));
  });
}

void AddCommands(loopspec::tools::Command root) {
  using namespace loopspec::tools;
  AddGenerateCommand(root);
  AddChatCommand(root);
  AddServeCommand(root);
  AddBatchCommand(root);
  AddBenchCommand(root);
  AddExperimentCommand(root);
  AddCalibrateCommand(root);
  AddSimulateCommand(root);
  AddInspectCommand(root);
  AddLogitsCommand(root);
  AddTokenizeCommand(root);
  AddDetokenizeCommand(root);
  AddTemplateCommand(root);
  AddTraceCommand(root);
  AddQuantizeCommand(root);
  AddSynthCommand(root);
  AddDemoCommand(root);
  AddPullCommand(root);
  AddListCommand(root);
  AddRmCommand(root);
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe shows as a failed write, not as a death
  loopspec::ReportMappedFileFaults();
  std::vector<std::string> words(argv + 1, argv + argc);
  TurnHelpAround(words);
  CLI::App app(kDescription, "loopspec");
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_help_flag("-h,--help", "Print this help message and exit");
  app.set_version_flag("--version", loopspec::tools::VersionLines(),
                       "Display program version information and exit");
  app.require_subcommand(1);
  const loopspec::tools::Command root(app, NamesModel(words));
  AddCommands(root);
  loopspec::tools::OfferMissingModels();
  loopspec::tools::AddDocsCommands(app, root);
  app.footer(kFooter);  // now: commands take over what is set before them
  Origins origins;
  try {
    if (const std::string wrong = WrongCommand(app, words); !wrong.empty()) return Complain(wrong);
    origins = loopspec::tools::ReadSettings(app, words.empty() ? "" : words[0]);
    std::vector<std::string> backwards(words.rbegin(), words.rend());  // as CLI11 takes them
    app.parse(std::move(backwards));
  } catch (const CLI::Success& answered) {  // --help, --version
    app.exit(answered);
  } catch (const CLI::ParseError& error) {
    return Complain(Explain(app, error, words));
  } catch (const loopspec::tools::BadValue& error) {
    return Complain(Explain(app, error, origins, words));
  } catch (const loopspec::Error& error) {
    return Complain(error.what());
  } catch (const std::bad_alloc&) {
    return Complain("out of memory");
  } catch (const std::exception& error) {
    if (std::ferror(stdout) == 0)
      return Complain(error.what());  // else fmt::print threw, and Finish says why
  }
  return Finish();
}

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
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/printable.h"
#include "tools/command_docs.h"
#include "tools/commands.h"
#include "tools/interrupt.h"
#include "tools/offer_pull.h"
#include "tools/parse_message.h"
#include "tools/provenance.h"
#include "tools/settings.h"
#include "tools/suggest.h"

namespace {

constexpr const char* kDescription =
    "loopspec: lossless, fast inference for looped transformers (Ouro, Raven).\n\n"
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

// "unknown option --devic, did you mean --device?" Nothing when the first stray word is no option.
std::string UnknownOption(const CLI::App& command) {
  for (const std::string& word : command.remaining()) {
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
  return "";
}

using Origins = std::map<std::string, std::string>;  // variable -> file and line

// Where a value came from that the command line does not have.
std::string Origin(const CLI::App& command, const std::string& message, const Origins& origins,
                   const std::vector<std::string>& words) {
  const std::string name = message.substr(0, message.find_first_of(" :"));
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

// What is wrong with the command line, in one sentence, and where to read more.
std::string Explain(const CLI::App& app, const CLI::ParseError& error, const Origins& origins,
                    const std::vector<std::string>& words) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  if (chosen.empty()) {
    const std::vector<std::string> rest = app.remaining();
    return UnknownCommand(app, rest.empty() ? "" : rest[0]);
  }
  const CLI::App* command = chosen[0];
  std::string path = command->get_name();
  while (!command->get_subcommands().empty()) {  // a command of a command
    command = command->get_subcommands()[0];
    path += " " + command->get_name();
  }
  if (!command->get_subcommands({}).empty()) {
    const std::vector<std::string> rest = command->remaining();
    return UnknownCommand(*command, rest.empty() ? "" : rest[0], path + " ");
  }
  const auto takes_fractions = [&](const std::string& name) {
    const CLI::Option* option = command->get_option_no_throw(name);
    return option != nullptr && option->get_type_name() == "FLOAT";
  };
  std::string message = UnknownOption(*command);
  if (message.empty() || dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr)
    message = loopspec::tools::ParseMessage(error.what(), takes_fractions);
  message += Origin(*command, message, origins, words);
  return fmt::format("{} (see loopspec {} --help)", message, path);
}

// Refuses empty values ("--trace ''") of every option of every command.
void RefuseEmptyValues(CLI::App& app) {
  const auto not_empty = [](const std::string& value) -> std::string {
    return value.empty() ? "is empty" : "";
  };
  for (CLI::App* command : app.get_subcommands({})) {
    for (CLI::Option* option : command->get_options()) {
      if (option->get_items_expected_max() > 0 && option->nonpositional())
        option->check(CLI::Validator(not_empty, "", "not empty"));
    }
    RefuseEmptyValues(*command);
  }
}

// The help as CLI11 writes it, without a variable's name behind every option.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string out;
    if (option->get_type_size() == 0) return out;
    if (!option->get_type_name().empty()) out += " " + get_label(option->get_type_name());
    if (!option->get_default_str().empty()) out += " [" + option->get_default_str() + "] ";
    if (option->get_expected_max() == CLI::detail::expected_max_vector_size) out += " ...";
    if (option->get_required()) out += " " + get_label("REQUIRED");
    return out;
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
  app.set_version_flag("--version", loopspec::tools::VersionLines());
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  const loopspec::tools::Command root(app, NamesModel(words));
  AddCommands(root);
  loopspec::tools::OfferMissingModels();
  loopspec::tools::AddDocsCommands(app, root);
  app.footer(kFooter);  // now: commands take over what is set before them
  RefuseEmptyValues(app);
  Origins origins;
  try {
    // Before --help behind it is looked at.
    const std::vector<std::string> names = CommandNames(app);
    const std::string first = words.empty() ? "" : words[0];
    if (!first.empty() && first[0] != '-' &&
        std::find(names.begin(), names.end(), first) == names.end()) {
      return Complain(UnknownCommand(app, first));
    }
    origins = loopspec::tools::ReadSettings(app, first);
    std::vector<std::string> backwards(words.rbegin(), words.rend());  // as CLI11 takes them
    app.parse(std::move(backwards));
  } catch (const CLI::Success& answered) {  // --help, --version
    app.exit(answered);
  } catch (const CLI::ParseError& error) {
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

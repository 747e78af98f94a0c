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
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/printable.h"
#include "tools/commands.h"
#include "tools/interrupt.h"
#include "tools/parse_message.h"

namespace {

constexpr const char* kDescription =
    "loopspec: lossless, fast inference for looped transformers (Ouro, Raven).\n\n"
    "A looped transformer runs one stack of blocks R times per token. LoopSpec lets an early "
    "recurrence draft the next\n"
    "token and verifies at the last: the text is exactly the model's own, several times sooner.\n\n"
    "Start here:\n"
    "  loopspec generate --model models/ouro-demo --chat --prompt \"Tell me a story about a "
    "cat.\"\n"
    "  loopspec chat --model models/ouro-demo\n"
    "  loopspec inspect --model ByteDance/Ouro-1.4B";

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
  return fmt::format("{}, expected one of {} (see loopspec {}--help)",
                     name.empty() ? "no command given" : "unknown command " + path + name,
                     fmt::join(CommandNames(app), ", "), path);
}

// What is wrong with the command line, in one sentence, and where to read more.
std::string Explain(const CLI::App& app, const CLI::ParseError& error) {
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
  return fmt::format("{} (see loopspec {} --help)",
                     loopspec::tools::ParseMessage(error.what(), takes_fractions), path);
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

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe shows as a failed write, not as a death
  loopspec::ReportMappedFileFaults();
  CLI::App app(kDescription, "loopspec");
  app.set_version_flag("--version", "loopspec " LOOPSPEC_VERSION);
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  using namespace loopspec::tools;
  AddGenerateCommand(app);
  AddChatCommand(app);
  AddServeCommand(app);
  AddBatchCommand(app);
  AddBenchCommand(app);
  AddExperimentCommand(app);
  AddCalibrateCommand(app);
  AddSimulateCommand(app);
  AddInspectCommand(app);
  AddLogitsCommand(app);
  AddTokenizeCommand(app);
  AddDetokenizeCommand(app);
  AddTemplateCommand(app);
  AddTraceCommand(app);
  AddSynthCommand(app);
  AddDemoCommand(app);
  RefuseEmptyValues(app);
  try {
    // Before --help behind it is looked at.
    const std::vector<std::string> names = CommandNames(app);
    if (argc > 1 && argv[1][0] != '-' &&
        std::find(names.begin(), names.end(), argv[1]) == names.end()) {
      return Complain(UnknownCommand(app, argv[1]));
    }
    app.parse(argc, argv);
  } catch (const CLI::Success& answered) {  // --help, --version
    app.exit(answered);
  } catch (const CLI::ParseError& error) {
    return Complain(Explain(app, error));
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

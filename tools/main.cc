// loopspec: one binary, many commands.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/field_error.h"
#include "base/mapped_file.h"
#include "base/printable.h"
#include "fields/request_fields.h"
#include "tools/command_docs.h"
#include "tools/command_spec.h"
#include "tools/commands.h"
#include "tools/help_page.h"
#include "tools/interrupt.h"
#include "tools/offer_pull.h"
#include "tools/option_value.h"
#include "tools/parse_words.h"
#include "tools/provenance.h"
#include "tools/settings.h"

namespace {

using namespace loopspec::tools;

constexpr const char* kDescription =
    "loopspec: lossless, fast inference for looped transformers (Ouro, Nanbeige, Raven, Huginn, "
    "IFM).\n\n"
    "A looped transformer runs one stack of blocks R times per token. LoopSpec lets an early "
    "recurrence draft the next\n"
    "token and verifies at the last: the text is exactly the model's own, several times sooner.\n\n"
    "Start here:\n"
    "  loopspec demo\n"
    "  loopspec generate ouro-demo \"Tell me a story about a cat.\" --chat\n"
    "  loopspec chat ouro-demo\n"
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
  return Interrupted() ? kInterruptedExit : kBadInput;
}

// As after `loopspec ... | head -1`: the reader has what it wanted.
bool ReaderIsGone() {
  pollfd out = {STDOUT_FILENO, POLLOUT, 0};
  return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

// Results that did not reach standard output are an error, whatever command wrote them.
int Finish() {
  errno = 0;
  const int code = Interrupted() ? kInterruptedExit : 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  if (ReaderIsGone()) return code;
  return Complain(fmt::format("cannot write to standard output{}",
                              errno != 0 ? fmt::format(": {}", std::strerror(errno)) : ""));
}

using Origins = std::map<std::string, std::string>;  // variable -> file and line

// " in LOOPSPEC_THREADS", or the line of the settings; nothing for a value of the command line.
std::string Origin(const CommandSpec& command, const std::string& name, const Origins& origins) {
  for (const auto& option : command.options) {
    if (option->rule.name != name || !option->from_variable) continue;
    const auto found = origins.find(option->variable);
    return " in " + (found == origins.end() ? option->variable : found->second);
  }
  return "";
}

// With the names of options, and what can be done about it here.
std::string Worded(const loopspec::FieldError& error) {
  const bool too_long = error.kind() == loopspec::ErrorKind::kTooLong;
  return error.Worded(loopspec::OptionOf(error.field())) +
         (too_long ? " (--set max_position_embeddings=N overrides it)" : "");
}

// Where to read more.
std::string SeeHelp(const CommandSpec& command) {
  return fmt::format(" (see {} --help)", command.path());
}

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

void AddCommands(Command root) {
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
  AddGrammarCommand(root);
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
  CommandSpec app;
  app.name = "loopspec";
  app.help = kDescription;
  app.footer = kFooter;
  const Command root(app, NamesModel(words));
  root.AddHelp();
  bool version = false;
  root.AddFlag("--version", version, "Display program version information and exit");
  AddCommands(root);
  OfferMissingModels();
  AddDocsCommands(app, root);
  const CommandSpec* command = &app;
  Origins origins;
  try {
    size_t used = 0;
    CommandSpec& chosen = FindCommand(app, words, used);
    command = &chosen;
    origins = ReadSettings(app, words.empty() ? "" : words[0]);
    if (!ReadWords(chosen, {words.begin() + static_cast<std::ptrdiff_t>(used), words.end()}))
      fmt::print("{}", HelpPage(chosen));
    else if (version)
      fmt::print("{}\n", VersionLines());
    else
      chosen.action();
  } catch (const UsageError& error) {
    return Complain(error.what() + SeeHelp(*command));
  } catch (const BadValue& error) {
    return Complain(error.what() + Origin(*command, error.option(), origins) + SeeHelp(*command));
  } catch (const loopspec::FieldError& error) {
    return Complain(Worded(error));
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

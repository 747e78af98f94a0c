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
#include "tools/commands.h"

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

int Complain(std::string message) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  std::fflush(stdout);
  std::fprintf(stderr, "loopspec: %s\n", message.c_str());
  return kBadInput;
}

// What is wrong with the command line, in one sentence, and where to read more.
std::string ParseMessage(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  if (!chosen.empty())
    return fmt::format("{} (see loopspec {} --help)", error.what(), chosen[0]->get_name());
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  const std::vector<std::string> rest = app.remaining();
  return fmt::format("{}, expected one of {} (see loopspec --help)",
                     rest.empty() ? "no command given" : "unknown command " + rest[0],
                     fmt::join(names, ", "));
}

// As after `loopspec ... | head -1`: the reader has what it wanted.
bool ReaderIsGone() {
  pollfd out = {STDOUT_FILENO, POLLOUT, 0};
  return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

// Results that did not reach standard output are an error, whatever command wrote them.
int Finish() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return 0;
  if (ReaderIsGone()) return 0;
  return Complain(fmt::format("cannot write to standard output{}",
                              errno != 0 ? fmt::format(": {}", std::strerror(errno)) : ""));
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe shows as a failed write, not as a death
  CLI::App app(kDescription, "loopspec");
  app.set_version_flag("--version", "loopspec " LOOPSPEC_VERSION);
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  using namespace loopspec::tools;
  AddGenerateCommand(app);
  AddChatCommand(app);
  AddServeCommand(app);
  AddBenchCommand(app);
  AddInspectCommand(app);
  AddLogitsCommand(app);
  AddTokenizeCommand(app);
  AddDetokenizeCommand(app);
  AddTemplateCommand(app);
  AddTraceCommand(app);
  AddSynthCommand(app);
  AddDemoCommand(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& answered) {  // --help, --version
    app.exit(answered);
  } catch (const CLI::ParseError& error) {
    return Complain(ParseMessage(app, error));
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

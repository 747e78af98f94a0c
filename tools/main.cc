// loopspec: one binary, many commands.
#include <CLI/CLI.hpp>

#include <clocale>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>

#include "base/error.h"
#include "tools/commands.h"

namespace {

constexpr const char* kDescription =
    "loopspec: lossless, fast inference for looped transformers (Ouro, Raven).\n\n"
    "A looped transformer runs one stack of blocks R times per token. LoopSpec lets an early recurrence draft the next\n"
    "token and verifies at the last: the text is exactly the model's own, several times sooner.\n\n"
    "Start here:\n"
    "  loopspec generate --model models/ouro-demo --chat --prompt \"Tell me a story about a cat.\"\n"
    "  loopspec chat --model models/ouro-demo\n"
    "  loopspec inspect --model ByteDance/Ouro-1.4B";

constexpr int kBadInput = 2;

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
  AddBenchCommand(app);
  AddInspectCommand(app);
  AddLogitsCommand(app);
  AddTokenizeCommand(app);
  AddDetokenizeCommand(app);
  AddTemplateCommand(app);
  AddTraceCommand(app);
  AddDemoCommand(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForAllHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForVersion& version) {
    return app.exit(version);
  } catch (const CLI::ParseError& error) {
    app.exit(error);
    return kBadInput;
  } catch (const loopspec::Error& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "loopspec: %s\n", error.what());
    return kBadInput;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "loopspec: out of memory\n");
    return kBadInput;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "loopspec: %s\n", error.what());
    return kBadInput;
  }
  return std::fflush(stdout) == 0 ? 0 : 1;
}

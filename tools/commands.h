// The subcommands of `loopspec`. Each function adds one to the application: its options, its help,
// and what it runs. A command reports bad input by throwing Error; main prints the sentence and
// exits with 2.
#pragma once

#include <CLI/CLI.hpp>

namespace loopspec::tools {

void AddBenchCommand(CLI::App& app);
void AddChatCommand(CLI::App& app);
void AddDemoCommand(CLI::App& app);
void AddDetokenizeCommand(CLI::App& app);
void AddGenerateCommand(CLI::App& app);
void AddInspectCommand(CLI::App& app);
void AddLogitsCommand(CLI::App& app);
void AddSynthCommand(CLI::App& app);
void AddTemplateCommand(CLI::App& app);
void AddTokenizeCommand(CLI::App& app);
void AddTraceCommand(CLI::App& app);

}  // namespace loopspec::tools

// The subcommands of `loopspec`. Each function adds one to the application: its options, its help,
// and what it runs. A command reports bad input by throwing Error; main prints the sentence and
// exits with 2.
#pragma once

#include "tools/command_line.h"

namespace loopspec::tools {

void AddBatchCommand(Command app);
void AddBenchCommand(Command app);
void AddCalibrateCommand(Command app);
void AddChatCommand(Command app);
void AddDemoCommand(Command app);
void AddDetokenizeCommand(Command app);
void AddExperimentCommand(Command app);
void AddGenerateCommand(Command app);
void AddGrammarCommand(Command app);
void AddInspectCommand(Command app);
void AddListCommand(Command app);
void AddLogitsCommand(Command app);
void AddPullCommand(Command app);
void AddQuantizeCommand(Command app);
void AddRmCommand(Command app);
void AddServeCommand(Command app);
void AddSimulateCommand(Command app);
void AddSynthCommand(Command app);
void AddTemplateCommand(Command app);
void AddTokenizeCommand(Command app);
void AddTraceCommand(Command app);

}  // namespace loopspec::tools

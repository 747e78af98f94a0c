// Downloads for the commands: `loopspec pull`, and models that another command names and that are
// not here yet.
#pragma once

#include <string>

#include "hub/pull.h"
#include "tools/command_line.h"

namespace loopspec::tools {

// --pull, or --yes: a model that is not here is downloaded without a question.
void AddPullFlag(Command command);

// From now on a model's name that is not in the cache is offered for download: by a question on a
// terminal, without one where --pull or LOOPSPEC_PULL=1 says so. Elsewhere nothing is downloaded.
void OfferMissingModels();

// Downloads with a line of progress on stderr and Ctrl-C that keeps what has come. Refuses models
// that this engine cannot run before their weights come.
hub::PullResult PullWithProgress(hub::PullOptions options);

// A question on stderr, answered at the terminal; false without an answer.
bool Ask(const std::string& question);
// Whether there is somebody to ask.
bool CanAsk();

}  // namespace loopspec::tools

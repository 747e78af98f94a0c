// The timeline of branches as a file.
#pragma once

#include <string>
#include <vector>

#include "loopspec/engine.h"

namespace loopspec::tools {

// {"recurrence", "depths", "tokens": [...], "events": [{kind, step, branch, parent, token, text,
// position, depth, proposal}]}
void WriteTrace(const std::string& path, const Engine& engine, const std::vector<int>& depths,
                const Choice& result);

}  // namespace loopspec::tools

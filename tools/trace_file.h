// The timeline of branches as a file, and as a picture.
#pragma once

#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "loopspec/engine.h"
#include "tools/follow.h"

namespace loopspec::tools {

// {"recurrence", "depths", "tokens": [...], "events": [{kind, step, branch, parent, token, text,
// position, depth, proposal}]}
void WriteTrace(const std::string& path, const Engine& engine, const std::vector<int>& depths,
                const Followed& result);

// Steps [begin, end) of a trace as SVG: a row per branch, a box per recurrence, as in the paper's
// Figure 1.
std::string DrawTrace(const Json& trace, int64_t begin, int64_t end, const std::string& what);

}  // namespace loopspec::tools

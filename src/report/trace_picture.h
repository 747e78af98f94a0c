// The timeline of branches as a picture.
#pragma once

#include <cstdint>
#include <string>

#include "base/json_fwd.h"

namespace loopspec {

// R of the model that wrote it. Throws Error.
int TraceRecurrence(const Json& trace, const std::string& what);

// Steps [begin, end) of a trace as SVG: a row per branch, a box per recurrence, as in the paper's
// Figure 1.
std::string DrawTrace(const Json& trace, int64_t begin, int64_t end, const std::string& what);

// The same as text for a terminal: a column per recurrence, the depth reached in it. `colour`: by
// what became of a branch, as ANSI escapes.
std::string TraceText(const Json& trace, int64_t begin, int64_t end, const std::string& what,
                      bool colour);

}  // namespace loopspec

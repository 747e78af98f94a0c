// What runs report: statistics as JSON, the floor of a run, numbers for people.
#pragma once

#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "loopspec/engine.h"

namespace loopspec::tools {

// The `stats` object of --json.
OrderedJson StatsJson(const ModelFacts& facts, const std::vector<int>& depths,
                      const Choice& result);

// 12.3 tokens/s, 1.2 ms, 27.5 MB ...
std::string HumanBytes(double bytes);
std::string HumanSeconds(double seconds);
std::string HumanCount(double count);

// Says on stderr that a text was cut after `tokens` tokens, and by what: "-n".
void NoteCut(size_t tokens, const char* by);

// Why reading faster than memory is no mistake; nothing for shares up to 1.
std::string ExplainFloor(double share);

// Work may be silent this long before a line says how far it is.
inline constexpr double kQuietSeconds = 2.0;

// True when stdout (or stderr) is a terminal, not a dumb one, and NO_COLOR is not set.
bool ColourOnStdout();
bool ColourOnStderr();

// Colours by source: fallback, first, second, ... proposal; underlined when the token's branch had
// begun before it was drafted.
std::string SourceColour(int source, bool early = false);
inline constexpr const char* kPlain = "\033[0m";

}  // namespace loopspec::tools

// What a reader needs to repeat a measurement: the version, the day, the command.
#pragma once

#include <string>

namespace loopspec::tools {

// "0.1.0 (commit abc1234)"
std::string VersionText();
// "2026-11-16", UTC.
std::string Today();
// The command as it was given, such as "loopspec bench --model ...".
std::string CommandLine();

}  // namespace loopspec::tools

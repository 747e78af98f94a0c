// What a reader needs to repeat a measurement: the version, the day, the command.
#pragma once

#include <string>

namespace loopspec::tools {

// "0.1.0 (commit abc1234)"
std::string VersionText();
// For --version: that, the backends with the instructions that this CPU offers, and which of the
// optional parts were built.
std::string VersionLines();
// "2026-11-16", UTC.
std::string Today();
// The command as it was given, such as "loopspec bench --model ...".
std::string CommandLine();

}  // namespace loopspec::tools

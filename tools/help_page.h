// The help of a command, laid out by us: CLI11's layout changes from version to version.
#pragma once

#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace loopspec::tools {

// What --help prints for a command, or for the application that holds the commands: what it does,
// how it is called, its arguments, its options under their headings, its commands, its footer.
std::string HelpPage(const CLI::App& app);

}  // namespace loopspec::tools

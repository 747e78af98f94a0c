// Files that commands write: looked at before the work starts, replaced as a whole when it is done.
#pragma once

#include <string>

namespace loopspec::tools {

// Throws Error when nothing can be written there: better told at once than after the run. `option`
// names it to the user.
void CheckOutputFile(const std::string& path, const char* option);

// Replaces the file as a whole or leaves it alone; a device or a pipe is written to as it is, and
// "-" is standard output.
// Throws Error.
void WriteTextFile(const std::string& path, const std::string& text);

}  // namespace loopspec::tools

// What commands read besides a model: prompts, messages, ids, traces.
#pragma once

#include <string>

namespace loopspec::tools {

// The whole of a file, a pipe (as a shell's <(command) makes one) or, for "-", standard input.
// Throws Error naming it. Bounded: a device that never ends is refused.
std::string ReadInput(const std::string& path);

// How to call it in messages: the path, or "standard input".
std::string NameOfInput(const std::string& path);

}  // namespace loopspec::tools

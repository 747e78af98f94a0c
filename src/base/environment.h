// Variables of the environment, and the user's folders that some of them name.
#pragma once

#include <filesystem>
#include <string>

namespace loopspec {

// The variable's value; empty where it is not set.
std::string Environment(const char* name);

// The folder that a variable such as XDG_CACHE_HOME names, else `below_home` in the home folder.
// Empty where neither is set.
std::filesystem::path UserFolder(const char* variable, const char* below_home);

}  // namespace loopspec

#include "base/environment.h"

#include <cstdlib>

namespace loopspec {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::filesystem::path UserFolder(const char* variable, const char* below_home) {
  if (std::string folder = Environment(variable); !folder.empty()) return folder;
  const std::filesystem::path home = Environment("HOME");
  return home.empty() ? home : home / below_home;
}

}  // namespace loopspec

#include "base/log.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/printable.h"

namespace loopspec {

void PrintWarning(std::string_view message) {
  const char* terminal = std::getenv("TERM");
  const bool coloured = isatty(STDERR_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr &&
                        terminal != nullptr && std::string_view(terminal) != "dumb";
  const std::string line =
      fmt::format("{}loopspec: warning: {}{}\n", coloured ? "\033[33m\033[1m" : "",
                  Printable(message), coloured ? "\033[m" : "");
  std::fwrite(line.data(), 1, line.size(), stderr);  // at once: lines of other threads stay whole
}

}  // namespace loopspec

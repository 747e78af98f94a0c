#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>

#include "base/printable.h"

namespace loopspec {
namespace {

spdlog::logger& Logger() {
  // spdlog colours only when stderr is a terminal that it knows.
  static const auto logger = [] {
    auto made = spdlog::stderr_color_mt("loopspec");
    made->set_pattern(std::getenv("NO_COLOR") != nullptr ? "%n: %l: %v" : "%^%n: %l: %v%$");
    return made;
  }();
  return *logger;
}

spdlog::level::level_enum Level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

void SetLogLevel(LogLevel level) {
  Logger().set_level(Level(level));
}
void LogMessage(LogLevel level, std::string_view message) {
  Logger().log(Level(level), Printable(message));
}

}  // namespace loopspec

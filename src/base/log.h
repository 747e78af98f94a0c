// Messages for the person at the terminal, on stderr: stdout belongs to results.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace loopspec {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

void SetLogLevel(LogLevel level);
void LogMessage(LogLevel level, std::string_view message);

template <typename... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  LogMessage(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace loopspec

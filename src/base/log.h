// Warnings for the person at the terminal, on stderr: stdout belongs to results.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace loopspec {

// One line, coloured where stderr is a terminal.
void PrintWarning(std::string_view message);

template <typename... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  PrintWarning(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace loopspec

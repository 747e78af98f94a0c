// White space of lines and of JSON, and text without it.
#pragma once

#include <string_view>

namespace loopspec {

inline constexpr std::string_view kWhite = " \t\r\n";

inline constexpr bool IsWhite(int byte) {
  return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n';
}

// A view into `text` that leaves out the white space at both ends.
inline std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kWhite);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhite) - begin + 1);
}

}  // namespace loopspec

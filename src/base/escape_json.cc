#include "base/escape_json.h"

#include <fmt/format.h>

namespace loopspec {

std::string EscapedJson(std::string_view text) {
  constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t";
  constexpr std::string_view kLetters = "\"\\bfnrt";
  std::string out;
  for (const char c : text) {
    if (const size_t at = kEscaped.find(c); at != kEscaped.npos) {
      out += '\\';
      out += kLetters[at];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace loopspec

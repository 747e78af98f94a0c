#include "base/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "base/utf8.h"

namespace loopspec {
namespace {

// Bytes of the UTF-8 character at the beginning of `text`; 0 when there is none: a stray or missing
// continuation byte, an overlong form, a surrogate, a value over U+10FFFF.
size_t CharacterLength(std::string_view text, uint32_t& value) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const size_t length = first < 0x80             ? 1
                        : (first & 0xE0) == 0xC0 ? 2
                        : (first & 0xF0) == 0xE0 ? 3
                        : (first & 0xF8) == 0xF0 ? 4
                                                 : 0;
  if (length == 0 || length > text.size()) return 0;
  value = length == 1 ? first : first & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    value = value << 6 | (byte(i) & 0x3Fu);
  }
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  return value < kSmallest[length] || !IsCharacter(value) ? 0 : length;
}

// C0 and C1 controls, and the marks that reorder text on a screen.
bool IsControl(uint32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || (c >= 0x202A && c <= 0x202E) ||
         (c >= 0x2066 && c <= 0x2069);
}

}  // namespace

std::string Printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    uint32_t value = 0;
    const size_t length = CharacterLength(text, value);
    const size_t taken = std::max<size_t>(length, 1);
    if (length > 0 && !IsControl(value)) {
      out += text.substr(0, length);
    } else {
      for (const char c : text.substr(0, taken))
        fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<unsigned char>(c));
    }
    text.remove_prefix(taken);
  }
  return out;
}

}  // namespace loopspec

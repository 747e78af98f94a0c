// UTF-8: decoding, encoding, and invalid bytes. What a code point means is elsewhere:
// text/unicode.h as the field's tokenizers see it, jinja/unicode.h as Python does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace loopspec {

inline constexpr char32_t kLastCodePoint = 0x10FFFF;
// Whether a number is that of a character: surrogates are not.
inline constexpr bool IsCharacter(int64_t value) {
  return value >= 0 && value <= kLastCodePoint && (value < 0xD800 || value > 0xDFFF);
}

// U+FFFD, which stands for bytes that are no UTF-8.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// One decoded character of valid UTF-8.
struct CodePoint {
  char32_t value;
  int length;  // bytes, 1 to 4
};

// `text` must be valid UTF-8 and `position` the start of a character in it.
inline CodePoint DecodeUtf8(std::string_view text, size_t position) {
  const auto byte = [&](size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[position + i]));
  };
  const char32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (first < 0xF0) return {(first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F),
          4};
}

// The start of the character that ends at `position` (> 0) of valid UTF-8.
size_t PreviousCharacter(std::string_view text, size_t position);
void AppendUtf8(char32_t code_point, std::string& out);
size_t CountCharacters(std::string_view text);
bool IsValidUtf8(std::string_view text);

// Appends `bytes` with U+FFFD for every maximal ill-formed part, as Python's errors="replace" and
// Rust's from_utf8_lossy do.
void AppendLossyUtf8(std::string_view bytes, std::string& out);
// The same for bytes that come in pieces: appends what is decided and returns how many bytes at the
// end are an unfinished character, to be given again with what follows.
size_t AppendLossyUtf8Prefix(std::string_view bytes, std::string& out);

}  // namespace loopspec

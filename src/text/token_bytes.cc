#include "text/token_bytes.h"

#include <array>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"

namespace loopspec {
namespace {

// GPT-2's letter for each byte: printable ones stand for themselves, the others are U+0100 and up.
std::array<int, 0x180> BytesOfLetters() {
  std::array<int, 0x180> bytes;
  bytes.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
                           (byte >= 0xAE && byte <= 0xFF);
    bytes[static_cast<size_t>(printable ? byte : next++)] = byte;
  }
  return bytes;
}

// Empty where a letter stands for no byte: such a token is added text.
std::optional<std::string> FromLetters(std::string_view token) {
  static const std::array<int, 0x180> kBytes = BytesOfLetters();
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    const CodePoint letter = DecodeUtf8(token, i);
    if (letter.value >= kBytes.size() || kBytes[letter.value] < 0) return std::nullopt;
    bytes += static_cast<char>(kBytes[letter.value]);
    i += static_cast<size_t>(letter.length);
  }
  return bytes;
}

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string FromPieces(std::string_view token) {
  if (token.size() == 6 && token.starts_with("<0x") && token[5] == '>') {
    const int high = HexValue(token[3]);
    const int low = HexValue(token[4]);
    if (high >= 0 && low >= 0) return {static_cast<char>(high * 16 + low)};
  }
  static constexpr std::string_view kSpace = "\xE2\x96\x81";
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    if (token.substr(i, kSpace.size()) == kSpace) {
      bytes += ' ';
      i += kSpace.size();
    } else {
      bytes += token[i++];
    }
  }
  return bytes;
}

}  // namespace

std::vector<std::string> TokenBytes(const Tokenizer& tokenizer) {
  const bool pieces = tokenizer.TokenToId("<0x0A>").has_value();
  // The letter of a space.
  const bool letters = !pieces && tokenizer.TokenToId("\xC4\xA0").has_value();
  if (!pieces && !letters) {
    Fail(
        "the tokenizer has neither bytes as letters nor byte fallback, so that the bytes of its "
        "tokens are unknown");
  }
  std::vector<std::string> bytes(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view token = tokenizer.IdToToken(id);
    std::string& out = bytes[static_cast<size_t>(id)];
    if (tokenizer.IsSpecial(id)) {
      out = token;
    } else if (letters) {
      out = FromLetters(token).value_or(std::string(token));
    } else {
      out = FromPieces(token);
    }
  }
  return bytes;
}

}  // namespace loopspec

#include "serve/openai/text.h"

#include <fmt/format.h>

#include "serve/openai/error.h"
#include "text/unicode.h"

namespace loopspec::serve {
namespace {

bool Hidden(char32_t c) {
  return (c >= 0x7F && c <= 0x9F) || c == 0xAD || c == 0x61C || c == 0x180E ||
         (c >= 0x200B && c <= 0x200F) || (c >= 0x2028 && c <= 0x202E) ||
         (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF || (c >= 0xFFF9 && c <= 0xFFFB) ||
         (c >= 0xE0000 && c <= 0xE007F);
}

}  // namespace

std::string WithoutQuotes(const ApiError& error) {
  if (!error.log.empty()) return error.log;
  const std::string& message = error.message;
  std::string out;
  for (size_t i = 0; i < message.size(); ++i) {
    out += message[i];
    if (message[i] != '"') continue;
    // To the quote that ends it; a message may have been cut short within one.
    for (++i; i < message.size() && message[i] != '"'; ++i) i += message[i] == '\\' ? 1 : 0;
    out += "...\"";
  }
  return out;
}

std::string Visible(std::string_view line) {
  std::string out;
  out.reserve(line.size());
  for (size_t at = 0; at < line.size();) {
    const CodePoint c = DecodeUtf8(line, at);
    if (!Hidden(c.value)) {
      out += line.substr(at, static_cast<size_t>(c.length));
    } else if (c.value < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c.value));
    } else {
      const auto rest = static_cast<uint32_t>(c.value) - 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
    }
    at += static_cast<size_t>(c.length);
  }
  return out;
}

std::string TokenText(std::string_view piece) {
  if (IsValidUtf8(piece)) return std::string(piece);
  std::string out = "bytes:";
  for (const char byte : piece) {
    out += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  }
  return out;
}

std::string ToolCallId(std::string_view answer, int choice, int call) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : fmt::format("{}/{}/{}", answer, choice, call))
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return fmt::format("call_{:016x}", hash);
}

}  // namespace loopspec::serve

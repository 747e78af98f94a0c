#include "base/utf8.h"

#include <cstdint>
#include <cstring>

namespace loopspec {
namespace {

// Looks at the character at the front of `bytes`: its length when well-formed; otherwise 0, and
// `bad` is the length of the maximal ill-formed part, `cut` whether more bytes could complete it.
struct Front {
  size_t length;
  size_t bad;
  bool cut;
};

Front ReadFront(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned first = at(0);
  if (first < 0x80) return {1, 0, false};
  size_t length = 0;
  unsigned low = 0x80, high = 0xBF;  // what the second byte may be
  if (first >= 0xC2 && first <= 0xDF) {
    length = 2;
  } else if (first >= 0xE0 && first <= 0xEF) {
    length = 3;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
  } else {
    return {0, 1, false};
  }
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {0, i, true};
    if (at(i) < low || at(i) > high) return {0, i, false};
    low = 0x80;
    high = 0xBF;
  }
  return {length, 0, false};
}

size_t AsciiPrefix(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if ((word & 0x8080808080808080u) != 0) break;
  }
  while (i < text.size() && static_cast<unsigned char>(text[i]) < 0x80) ++i;
  return i;
}

}  // namespace

size_t PreviousCharacter(std::string_view text, size_t position) {
  do {
    --position;
  } while (position > 0 && (static_cast<unsigned char>(text[position]) & 0xC0) == 0x80);
  return position;
}

void AppendUtf8(char32_t c, std::string& out) {
  const auto push = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    push(c);
  } else if (c < 0x800) {
    push(0xC0 | c >> 6);
    push(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    push(0xE0 | c >> 12);
    push(0x80 | (c >> 6 & 0x3F));
    push(0x80 | (c & 0x3F));
  } else {
    push(0xF0 | c >> 18);
    push(0x80 | (c >> 12 & 0x3F));
    push(0x80 | (c >> 6 & 0x3F));
    push(0x80 | (c & 0x3F));
  }
}

size_t CountCharacters(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

bool IsValidUtf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      i += AsciiPrefix(text.substr(i));
      continue;
    }
    const size_t length = ReadFront(text.substr(i)).length;
    if (length == 0) return false;
    i += length;
  }
  return true;
}

size_t AppendLossyUtf8Prefix(std::string_view bytes, std::string& out) {
  size_t i = 0;
  while (i < bytes.size()) {
    const size_t ascii = AsciiPrefix(bytes.substr(i));
    if (ascii > 0) {
      out.append(bytes.substr(i, ascii));
      i += ascii;
      continue;
    }
    const Front front = ReadFront(bytes.substr(i));
    if (front.cut) return bytes.size() - i;
    if (front.length > 0) {
      out.append(bytes.substr(i, front.length));
      i += front.length;
    } else {
      out.append(kReplacementCharacter);
      i += front.bad;
    }
  }
  return 0;
}

void AppendLossyUtf8(std::string_view bytes, std::string& out) {
  if (AppendLossyUtf8Prefix(bytes, out) > 0) out.append(kReplacementCharacter);
}

}  // namespace loopspec

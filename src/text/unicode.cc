#include "text/unicode.h"

#include <utf8proc.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/check.h"

namespace loopspec {
namespace {

constexpr char32_t kCodePoints = 0x110000;

constexpr uint32_t kClassRanges[] = {
#include "text/unicode_classes.inc"
};

std::vector<uint8_t> ExpandClasses() {
  std::vector<uint8_t> classes(kCodePoints);
  constexpr size_t count = sizeof(kClassRanges) / sizeof(kClassRanges[0]);
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = kClassRanges[i] >> 8;
    const size_t end = i + 1 < count ? kClassRanges[i + 1] >> 8 : kCodePoints;
    std::memset(&classes[begin], static_cast<int>(kClassRanges[i] & 0xFF), end - begin);
  }
  return classes;
}

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

// Normal form of text without kFrozen characters, by utf8proc.
void AppendNormalized(std::string_view text, utf8proc_option_t options, std::string& out) {
  if (text.empty()) return;
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &result, options);
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  LOOPSPEC_CHECK(size >= 0);  // fails only on invalid UTF-8
  out.append(reinterpret_cast<const char*>(result), static_cast<size_t>(size));
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

const uint8_t* CharacterClasses() {
  static const std::vector<uint8_t> classes = ExpandClasses();
  return classes.data();
}

void AppendLowercase(char32_t c, std::string& out) {
  if (c == 0x130) {
    out.append("i\xCC\x87");
    return;
  }
  // Capitals younger than utf8proc 2.8's Unicode 14.
  if (c == 0x1C89 || c == 0xA7CC || c == 0xA7CE || c == 0xA7D2 || c == 0xA7D4 || c == 0xA7DA) {
    c += 1;
  } else if (c == 0xA7CB) {
    c = 0x264;
  } else if (c == 0xA7DC) {
    c = 0x19B;
  } else if (c >= 0x10D50 && c <= 0x10D65) {
    c += 0x20;
  } else if (c >= 0x16EA0 && c <= 0x16EB8) {
    c += 0x1B;
  } else {
    c = static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
  }
  AppendUtf8(c, out);
}

std::string Normalize(std::string_view text, NormalForm form) {
  int options = UTF8PROC_STABLE;
  options |=
      form == NormalForm::kNfd || form == NormalForm::kNfkd ? UTF8PROC_DECOMPOSE : UTF8PROC_COMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  // Below U+0300 nothing composes, below U+00A0 nothing decomposes: most text goes through as it
  // is.
  const char32_t plain = form == NormalForm::kNfc ? 0x300 : 0xA0;
  std::string out;
  size_t begin = 0, i = 0;
  bool changes = false;  // whether [begin, i) needs the slow way
  const auto flush = [&] {
    const std::string_view part = text.substr(begin, i - begin);
    if (changes) {
      AppendNormalized(part, static_cast<utf8proc_option_t>(options), out);
    } else {
      out.append(part);
    }
    changes = false;
  };
  while (i < text.size()) {
    const CodePoint c = DecodeUtf8(text, i);
    if (c.value >= plain) {
      if (HasClass(c.value, kFrozen)) {
        flush();
        out.append(text.substr(i, static_cast<size_t>(c.length)));
        begin = i + static_cast<size_t>(c.length);
      } else {
        changes = true;
      }
    }
    i += static_cast<size_t>(c.length);
  }
  flush();
  return out;
}

}  // namespace loopspec

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

// What the field's tokenizers hold each code point to be, and normal forms.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/utf8.h"

namespace loopspec {

// Classes of code points, as the PyPI tokenizers library sees them (see make_unicode_classes.py).
enum CharacterClass : uint8_t {
  kLetter = 1,        // \p{L} of regular expressions
  kNumber = 2,        // \p{N} of regular expressions
  kSpace = 4,         // \s, and Rust's is_whitespace
  kWord = 8,          // \w of the Whitespace pre-tokenizer and of single_word added tokens
  kNumeric = 16,      // what Digits takes for a digit
  kPunctuation = 32,  // what Punctuation splits on
  kAccent = 64,       // what StripAccents removes
  kFrozen = 128,      // too new for the library's normal forms, which leave it alone
};

// One byte of CharacterClass bits for every code point.
const uint8_t* CharacterClasses();

inline bool HasClass(char32_t code_point, uint8_t classes) {
  return (CharacterClasses()[code_point] & classes) != 0;
}

// Lower case of one character, which may be two characters (U+0130).
void AppendLowercase(char32_t code_point, std::string& out);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
std::string Normalize(std::string_view text, NormalForm form);

}  // namespace loopspec

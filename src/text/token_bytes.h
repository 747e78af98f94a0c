// The bytes that each token adds to a text, also where they are no whole characters.
#pragma once

#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace loopspec {

// By id; empty for ids without a token. Special tokens have the bytes of their own text. For
// byte-level tokenizers (GPT-2's letters for bytes) and those with byte fallback (`<0x0A>`, `▁` for
// a space); throws Error for any other, since its bytes are unknown.
std::vector<std::string> TokenBytes(const Tokenizer& tokenizer);

}  // namespace loopspec

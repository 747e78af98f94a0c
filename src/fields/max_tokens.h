// How long an answer may be: one default and one check.
#pragma once

#include <cstdint>

namespace loopspec {

// Tokens of an answer whose length is not given, where the context holds as many.
inline constexpr int kDefaultTokens = 256;

// Throws a FieldError of kind kTooLong where prompt and answer together do not fit into the
// context: about `prompt` where it leaves no room for a single token, else about max_tokens.
void CheckLength(int64_t prompt_tokens, int64_t max_tokens, int64_t context);

}  // namespace loopspec

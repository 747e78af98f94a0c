#include "fields/max_tokens.h"

#include <algorithm>

#include "base/field_error.h"

namespace loopspec {

void CheckLength(int64_t prompt_tokens, int64_t max_tokens, int64_t context) {
  if (prompt_tokens + max_tokens <= context) return;
  const int64_t least = std::min<int64_t>(max_tokens, 1);
  if (prompt_tokens + least > context) {
    throw FieldError(ErrorKind::kTooLong, "prompt", fmt::format("{} tokens long", prompt_tokens),
                     fmt::format("at most {}, since the context has {} for prompt and answer",
                                 context - least, context));
  }
  throw FieldError(ErrorKind::kTooLong, "max_tokens", fmt::format("{}", max_tokens),
                   fmt::format("at most {}, since the prompt has {} tokens and the context {}",
                               context - prompt_tokens, prompt_tokens, context));
}

}  // namespace loopspec

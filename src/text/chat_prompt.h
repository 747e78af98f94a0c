// A conversation as token ids. The template's own special tokens are tokens; those that a user or a
// tool wrote (<|im_end|> in a question) stay text, so that nobody can end a turn but the template.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace loopspec {

struct ChatPrompt {
  std::string text;  // as the template gives it
  std::vector<int32_t> ids;
};

// `trust`: special tokens are tokens whoever wrote them. Otherwise this holds for all messages but
// those of the roles assistant (whose text came from the model; the arguments of its calls are
// taken as a stranger's), system and developer (who speak for the service). Text without such
// strings gives the same ids either way.
ChatPrompt EncodeChat(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                      const OrderedJson& messages, const ChatTemplate::Options& options, bool trust,
                      const EncodeLimits& limits = {});

}  // namespace loopspec

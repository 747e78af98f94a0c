// What turns text into tokens and back, for --model: the files of its folder or, where there is no
// tokenizer.json beside it, what a GGUF file holds.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "text/chat_template.h"
#include "text/special_tokens.h"
#include "text/tokenizer.h"

namespace loopspec {

struct ModelText {
  std::optional<Tokenizer> tokenizer;
  SpecialTokens special;
  std::optional<ChatTemplate> chat_template;
};

// `model`: a folder or a GGUF file, as ResolveModel gives it. `vocab` and `overrides` are those of
// ReadSpecialTokens. Throws Error.
ModelText ReadModelText(const std::filesystem::path& model, int vocab,
                        std::span<const std::pair<std::string, std::string>> overrides);

// The tokenizer alone; throws Error where there is none.
Tokenizer ReadTokenizer(const std::filesystem::path& model);
// The chat template alone; nothing where there is none.
std::optional<ChatTemplate> ReadChatTemplate(const std::filesystem::path& model,
                                             std::string_view name);

}  // namespace loopspec

// Tokenizer, special tokens and chat template from the metadata of a GGUF file.
#pragma once

#include <optional>
#include <string>

#include "base/json_fwd.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace loopspec {

// The metadata of a GGUF file as a tokenizer.json: byte-level BPE (tokenizer.ggml.model gpt2) with
// the words of a pre-tokenizer that is known by name, or SentencePiece BPE (llama), whose merges
// follow from the scores of its pieces. Throws Error naming `what`.
std::string GgufTokenizerJson(const Json& metadata, const std::string& what);

// The ids of special tokens as a config.json has them: bos_token_id and so on; eos_token_id is a
// list of all that end a text or a turn.
Json GgufTokenIds(const Json& metadata, const std::string& what);

// Nothing where the file has no template.
std::optional<ChatTemplate> GgufChatTemplate(const Json& metadata, const std::string& what);

}  // namespace loopspec

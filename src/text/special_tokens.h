// Which token ids begin, end and pad a text, gathered from the files of a model folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/json_fwd.h"
#include "text/tokenizer.h"

namespace loopspec {

struct SpecialTokens {
  std::optional<int32_t> bos, pad, unk;
  std::vector<int32_t> eos;  // stop on any of them; sorted, without repetition
};

// Every file is optional. The tokenizer's files (tokenizer_config.json, then
// special_tokens_map.json) come first for bos, pad and unk, then generation_config.json and
// config.json. Ends of text are the union of all: releases disagree, and stopping too late is
// worse. A huginn_raven config.json is stale and not asked.
//
// `vocab`: tokens that the model has; an end of text outside of it throws Error, since the text
// would never end there. `overrides`: what replaces the files' words, as key=value pairs such as
// eos_token_id and 2; other keys are passed over.
SpecialTokens ReadSpecialTokens(
    const std::filesystem::path& dir, const Tokenizer* tokenizer, int vocab = INT32_MAX,
    std::span<const std::pair<std::string, std::string>> overrides = {});
// The same where all that there is are the ids of `config`, an object like config.json.
SpecialTokens SpecialTokensOf(const Json& config, const std::string& name, int vocab = INT32_MAX,
                              std::span<const std::pair<std::string, std::string>> overrides = {});

}  // namespace loopspec

// Which token ids begin, end and pad a text, gathered from the files of a model folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

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
SpecialTokens ReadSpecialTokens(const std::filesystem::path& dir, const Tokenizer* tokenizer);

}  // namespace loopspec

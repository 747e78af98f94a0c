// A tokenizer for models that have none: every byte is a token.
#pragma once

#include <string>

namespace loopspec {

inline constexpr int kByteTokens = 256;

// The text of a tokenizer.json: byte-level BPE without merges, ids 0 to 255 are the bytes.
std::string ByteTokenizerJson();

}  // namespace loopspec

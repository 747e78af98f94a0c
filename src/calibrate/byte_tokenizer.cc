#include "calibrate/byte_tokenizer.h"

#include "base/json.h"

namespace loopspec {
namespace {

// Byte-level tokenizers write bytes as characters: those that print as themselves, the others as
// the code points from 256 on, in order.
int CodePoint(int byte, int& next) {
  const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
                         (byte >= 0xAE && byte <= 0xFF);
  return printable ? byte : next++;
}

std::string Utf8(int code) {
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

}  // namespace

std::string ByteTokenizerJson() {
  OrderedJson vocab = OrderedJson::object();
  int next = 256;
  for (int byte = 0; byte < kByteTokens; ++byte) vocab[Utf8(CodePoint(byte, next))] = byte;
  const OrderedJson byte_level = {{"type", "ByteLevel"},
                                  {"add_prefix_space", false},
                                  {"trim_offsets", true},
                                  {"use_regex", false}};
  const OrderedJson tokenizer = {{"version", "1.0"},
                                 {"truncation", nullptr},
                                 {"padding", nullptr},
                                 {"added_tokens", OrderedJson::array()},
                                 {"normalizer", nullptr},
                                 {"pre_tokenizer", byte_level},
                                 {"post_processor", nullptr},
                                 {"decoder", byte_level},
                                 {"model",
                                  {{"type", "BPE"},
                                   {"dropout", nullptr},
                                   {"unk_token", nullptr},
                                   {"continuing_subword_prefix", nullptr},
                                   {"end_of_word_suffix", nullptr},
                                   {"fuse_unk", false},
                                   {"byte_fallback", false},
                                   {"vocab", vocab},
                                   {"merges", OrderedJson::array()}}}};
  return tokenizer.dump(1) + "\n";
}

}  // namespace loopspec

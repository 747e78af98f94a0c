// Text to token ids and back, as a released tokenizer.json says: exactly what the PyPI tokenizers
// library gives.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "loopspec/encode_limits.h"
#include "text/decoder.h"

namespace loopspec {

class Tokenizer {
 public:
  // Reads dir/tokenizer.json. Throws Error naming the file and the part that is missing, wrong or
  // not supported.
  static Tokenizer FromFolder(const std::filesystem::path& dir);
  // The same for a file's text; `what` names it in errors.
  static Tokenizer FromJson(std::string_view json, std::string_view what);

  // From now on the special tokens of a text are this one before it, whatever the file says.
  void BeginWith(int32_t id);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Any number of threads may encode at once. Invalid UTF-8 counts as U+FFFD, as Python's
  // errors="replace" has it. Truncation and padding that the file asks for are the caller's
  // business and not applied.
  // No special token that spans one of the positions `text_at` is a token: its characters are text.
  // Ascending; `text` must then be valid UTF-8.
  std::vector<int32_t> Encode(std::string_view text, bool add_special_tokens = true,
                              const EncodeLimits& limits = {},
                              std::span<const size_t> text_at = {}) const;
  // A position within every special token that is written in `text` (at the only character of one
  // that has no more), for the above. Tokens that are matched after normalization are found where
  // they are written as they are.
  std::vector<size_t> SpecialPositions(std::string_view text) const;
  // Unknown ids are left out.
  std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  int vocab_size() const;  // largest id + 1, added tokens included
  std::optional<int32_t> TokenToId(std::string_view token) const;
  std::string_view IdToToken(int32_t id) const;  // empty when unknown
  bool IsSpecial(int32_t id) const;
  // No text has fewer tokens than its bytes divided by this; 0: there is no such number.
  size_t bytes_per_token() const;

  const Decoder& decoder() const;

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace loopspec

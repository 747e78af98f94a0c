// The "pre_tokenizer" of a tokenizer.json: how text falls into words before the model sees it.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "text/pattern.h"

namespace loopspec {

// A stretch of text, and how many of its leading bytes stem from the first character of the whole
// input.
struct Piece {
  std::string_view text;
  size_t zero = 0;
};

// Takes pieces as they are made. A piece's text lives only during the call.
using PieceSink = std::function<void(const Piece&)>;

// One splitting step.
class PreTokenizerStep {
 public:
  virtual ~PreTokenizerStep() = default;
  // Gives the parts of `piece` in order; empty ones may be among them.
  virtual void Split(const Piece& piece, const PieceSink& sink) const = 0;
};

class PreTokenizer {
 public:
  PreTokenizer() = default;
  // Null, a pre-tokenizer or a Sequence of them; throws Error naming an unsupported type.
  static PreTokenizer FromJson(const Json& json, std::string_view what);

  // Whether the words are raw bytes still to be spelled in the byte-level alphabet: so when
  // ByteLevel comes last, which saves spelling them out.
  bool byte_level() const { return byte_level_; }
  // Whether every byte of a text is in one of its words.
  bool keeps_all() const { return keeps_all_; }
  // Calls `sink` with every word of `piece`, none of them empty.
  void Split(const Piece& piece, const PieceSink& sink) const;

 private:
  void Add(const Json& json, std::string_view what);
  void AddByteLevel(const Json& json, std::string_view what);

  std::vector<std::unique_ptr<PreTokenizerStep>> steps_;
  bool byte_level_ = false;
  bool keeps_all_ = true;
};

// What becomes of the text that a pattern matched.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Turns the spans of a search into pieces and gives them to `sink`.
void SplitSpans(const Piece& piece, std::vector<Span>& spans, SplitBehavior behavior,
                const PieceSink& sink);

// Regular expressions that most models share, matched by hand: the same result as the expression,
// faster.
inline constexpr std::string_view kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Words =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Words =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The length of the match at `position` (< text.size()) of valid UTF-8; these expressions match
// everywhere.
using WordMatcher = size_t (*)(std::string_view text, size_t position);
// Null when `expression` is none of the above.
WordMatcher FindWordMatcher(std::string_view expression);

}  // namespace loopspec

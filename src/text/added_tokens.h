// The "added_tokens" of a tokenizer.json: tokens that are cut out of the text before the model sees
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/json_fwd.h"
#include "text/bpe_vocab.h"
#include "text/normalizer.h"

namespace loopspec {

// Finds the leftmost of many strings, the longest where several begin together.
class StringSet {
 public:
  struct Match {
    size_t begin, end;
    int32_t value;
  };
  void Add(std::string_view text,
           int32_t value);  // the first value of a text stays; empty texts are ignored
  bool empty() const { return nodes_.size() == 1; }
  std::optional<Match> Find(std::string_view text, size_t from) const;
  bool Has(std::string_view text) const;

 private:
  // A trie: nodes_[n] is the value of node n or -1; edges_ leads from (node, byte) to a node.
  std::vector<int32_t> nodes_ = {-1};
  std::unordered_map<uint64_t, uint32_t> edges_;
  std::vector<uint32_t> roots_ = std::vector<uint32_t>(256, 0);  // edges of node 0; 0 is none
  int first_bytes_ = 0;                                          // how many roots there are
  char only_first_byte_ = 0;                                     // the root, when there is one
};

class AddedTokens {
 public:
  // Ids come from the model's vocabulary or are counted on from it, as the PyPI library does; the
  // file's ids are not used.
  static AddedTokens FromJson(const Json& list, const BpeVocab& vocab, const Normalizer& normalizer,
                              std::string_view what);

  // Cuts `text` at the tokens that are matched before (`normalized` false) or after normalization.
  // Calls `part(text, id)` with the stretches in order; `id` is -1 for text that is no token.
  using PartSink = std::function<void(std::string_view part, int32_t id)>;
  // A special token that spans one of the ascending positions `text_at` is text.
  void Split(std::string_view text, bool normalized, std::span<const size_t> text_at,
             const PartSink& sink) const;
  // A position within each special token that is written in `text`.
  std::vector<size_t> SpecialPositions(std::string_view text) const;
  bool has_normalized_special() const { return has_normalized_special_; }
  bool HasAny(bool normalized) const { return !(normalized ? normalized_ : plain_).empty(); }

  std::optional<int32_t> Find(std::string_view content) const;
  // What the token is in decoded text, normalized when it is matched so; null when no added token
  // has this id.
  const std::string* Shown(int32_t id) const;
  // Ids of special tokens, which decoding may hide: those shown as some special token is written.
  std::vector<int32_t> SpecialIds() const;
  int32_t largest_id() const { return largest_id_; }
  size_t longest() const;  // bytes
  bool strips() const;     // whether some take the blanks beside them along

 private:
  struct Token {
    std::string content;
    std::string shown;
    bool single_word, lstrip, rstrip, normalized, special;
    bool operator==(const Token&) const = default;
  };
  static Token ReadToken(const Json& json, std::string_view what);
  int32_t IdFor(const Token& token, const BpeVocab& vocab) const;

  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<int32_t, Token> tokens_;
  std::unordered_set<std::string> special_;
  StringSet plain_, normalized_;
  int32_t largest_id_ = -1;
  bool has_normalized_special_ = false;
};

}  // namespace loopspec

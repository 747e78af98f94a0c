// Byte pair encoding: a word becomes tokens by merging neighbours, lowest rank first.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "loopspec/encode_limits.h"
#include "text/bpe_vocab.h"
#include "text/tokenizer_json.h"

namespace loopspec {

// The byte-level alphabet: a printable character of its own for each of the 256 bytes.
class ByteAlphabet {
 public:
  static const ByteAlphabet& Get();
  std::string_view Character(unsigned char byte) const { return characters_[byte]; }
  int Byte(char32_t code_point) const {
    return code_point < bytes_.size() ? bytes_[code_point] : -1;
  }
  void AppendMapped(std::string_view raw, std::string& out) const {
    for (const char c : raw) out.append(characters_[static_cast<unsigned char>(c)]);
  }

 private:
  ByteAlphabet();
  std::array<std::string, 256> characters_;
  std::array<int16_t, 0x144> bytes_;  // by code point; -1 where no byte maps
};

// What one thread needs while it encodes; kept between calls so that the cache stays warm.
struct BpeScratch {
  // Words seen before, one per slot: text up to 28 bytes that gave up to 8 tokens.
  struct alignas(64) CachedWord {
    char text[28];
    uint8_t length;  // 0 is free
    uint8_t count;
    int32_t ids[8];
  };
  struct Symbol {
    int32_t id;
    int32_t previous, next;  // -1 at the ends
  };
  struct Candidate {
    uint64_t order;  // rank << 32 | position: the smallest goes first
    int32_t id;      // what the pair at that position became when it was noted
  };
  // Equal symbols side by side (bpe_runs.cc).
  struct Run {
    int32_t id;
    int32_t count;           // 0: merged away
    int32_t previous, next;  // -1 at the ends
    uint32_t start;          // of its first symbol, in symbols that the word had at first
    uint32_t width;          // such symbols in each of its own
  };
  struct RunPair {
    uint64_t order;  // rank << 32 | position: the smallest goes first
    int32_t run;
    int32_t merged;  // what the pair becomes
    bool inside;     // two symbols of the run; else its last one and the next run's first
  };
  const EncodeLimits* limits = nullptr;  // of the text at hand
  size_t unchecked = 0;                  // work since `cancelled` was asked

  // Throw when the limits are reached: before a word of `bytes` bytes; after a piece of work.
  void CheckWord(size_t tokens, size_t bytes, size_t bytes_per_token);
  void CheckWork(size_t work);
  // Gives back what only a text of unusual length needs.
  void Trim();

  std::vector<CachedWord> cache;
  size_t misses = 0;
  std::vector<int32_t> symbols;
  std::vector<Symbol> list;
  std::vector<Candidate> heap;
  bool by_runs = true;  // false: pair by pair whatever the word, for tests that compare the two
  std::vector<Run> runs;
  std::vector<RunPair> run_pairs;
  std::string text;
};

[[noreturn]] void FailTooManyTokens(int64_t at_least, int64_t limit);

class BpeModel {
 public:
  // `byte_level`: words will come through EncodeBytes. Throws Error naming `what` on an unsupported
  // or inconsistent model.
  static BpeModel FromJson(const TokenizerJson& file, bool byte_level, std::string_view what);

  const BpeVocab& vocab() const { return vocab_; }
  // Of the longest token; 0 when characters without a token may vanish or become one together.
  size_t bytes_per_token() const { return bytes_per_token_; }
  // Appends the tokens of a word of valid UTF-8.
  void EncodeText(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& ids) const;
  // The same for a word of raw bytes that the byte-level alphabet stands for.
  void EncodeBytes(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& ids) const;

 private:
  void ReadOptions(const Json& model, std::string_view what);
  void ReadMerges(const TokenizerJson& file, std::string_view what);
  void FindSafeBreaks();
  void FindLongestToken(bool byte_level);
  bool MayJoin(char32_t left, char32_t right) const {
    const uint32_t hash =
        (static_cast<uint32_t>(left) * 0x9E3779B1u) ^ (static_cast<uint32_t>(right) * 0x85EBCA77u);
    return (joins_[(hash >> 13) & (joins_.size() - 1)] >> (hash >> 8 & 31) & 1) != 0;
  }
  void MarkJoin(char32_t left, char32_t right) {
    const uint32_t hash =
        (static_cast<uint32_t>(left) * 0x9E3779B1u) ^ (static_cast<uint32_t>(right) * 0x85EBCA77u);
    joins_[(hash >> 13) & (joins_.size() - 1)] |= uint32_t{1} << (hash >> 8 & 31);
  }
  int32_t CharacterId(char32_t c) const {
    return c < character_ids_.size() ? character_ids_[c] : -1;
  }

  template <typename F>
  void Cached(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& ids,
              F encode) const;
  void EncodePiece(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& ids) const;
  void EncodeWholeText(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& ids) const;
  void SymbolsOf(std::string_view word, std::vector<int32_t>& symbols) const;
  bool AppendFallbackBytes(std::string_view text, std::vector<int32_t>& symbols) const;
  void Merge(BpeScratch& scratch, std::vector<int32_t>& ids) const;
  void MergeShort(int32_t* symbols, size_t count, std::vector<int32_t>& ids) const;
  void MergeLong(BpeScratch& scratch, std::vector<int32_t>& ids) const;
  // Makes scratch.runs of a long word that has few for its length: false where it has many.
  template <typename F>
  static bool FindRuns(size_t count, F symbol, BpeScratch& scratch);
  void MergeRuns(BpeScratch& scratch, std::vector<int32_t>& ids) const;

  std::string what_;
  BpeVocab vocab_;
  BpeMerges merges_;
  bool fuse_unknown_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
  std::string unknown_token_;
  int32_t unknown_id_ = -1;
  bool has_unknown_ = false;
  std::string subword_prefix_, word_suffix_;

  std::array<int32_t, 256>
      byte_ids_{};  // token of each byte-level character, -1 when there is none
  bool all_bytes_known_ = false;
  std::array<int32_t, 256> fallback_ids_{};  // token "<0xNN>" of each byte, -1 when there is none
  std::vector<int32_t> character_ids_;       // token of each single character, by code point
  // Pairs of characters that stand side by side in some merged token, as a filter that may say yes
  // too often. Between two characters that never do, no merge can happen, so a long text falls
  // apart there into words of its own.
  std::vector<uint32_t> joins_;
  bool can_break_ = false;
  size_t bytes_per_token_ = 0;
};

}  // namespace loopspec

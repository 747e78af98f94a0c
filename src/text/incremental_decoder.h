// Decoding while tokens arrive: gives text as soon as no later token can change it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "text/decoder.h"
#include "text/tokenizer.h"

namespace loopspec {

// Watches text for any of some strings, byte by byte (Aho-Corasick).
class StopMatcher {
 public:
  explicit StopMatcher(const std::vector<std::string>& stop);  // empty strings are ignored

  // Moves over one byte. Returns the length of the longest stop string that ends with it, or 0.
  size_t Step(unsigned char byte);
  // How many of the last bytes may be the beginning of a stop string.
  size_t depth() const { return nodes_[state_].depth; }

 private:
  struct Node {
    std::vector<std::pair<unsigned char, uint32_t>> edges;
    uint32_t fallback = 0;  // the longest other beginning that these bytes end with
    size_t depth = 0;
    size_t match = 0;  // the longest stop string that ends here
  };
  uint32_t Edge(uint32_t node, unsigned char byte) const;  // 0 when there is none
  std::vector<Node> nodes_ = std::vector<Node>(1);
  uint32_t state_ = 0;
};

class IncrementalDecoder {
 public:
  struct Options {
    bool skip_special = true;
    // Special tokens that are shown all the same: what marks thinking and calls of tools.
    std::vector<std::string> always_shown = {"<think>", "</think>", "<tool_call>", "</tool_call>",
                                             "<|python_tag|>"};
    // The first of them to be complete ends the text, and is not part of it.
    std::vector<std::string> stop = {};
    std::vector<int32_t> hidden = {};  // tokens that are never shown
  };
  // `tokenizer` must outlive the decoder.
  IncrementalDecoder(const Tokenizer& tokenizer, Options options);
  IncrementalDecoder(const IncrementalDecoder&) = delete;
  IncrementalDecoder& operator=(const IncrementalDecoder&) = delete;

  // Text that is safe to show now: never half a UTF-8 character, never text that a stop string may
  // take back.
  std::string Push(int32_t id);
  // Whether a stop string has been met. Nothing more comes after it.
  bool stopped() const { return stopped_; }
  // Which it was; empty: none.
  const std::string& stop_string() const { return stop_string_; }
  // What is left at the end.
  std::string Finish();

 private:
  std::string Release();

  const Tokenizer& tokenizer_;
  Options options_;
  std::unordered_set<int32_t> shown_;   // ids of always_shown
  std::unordered_set<int32_t> hidden_;  // ids of Options::hidden
  StopMatcher matcher_;
  std::string decoded_;  // text that came out of the pipeline and has not been looked at
  std::string held_;     // text that may be the beginning of a stop string
  std::string stop_string_;
  bool stopped_ = false;
  bool finished_ = false;
  Decoder::Pipeline pipeline_;
};

}  // namespace loopspec

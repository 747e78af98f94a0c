// A mark that a scripted model says, cut into tokens in many ways.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/scripted_engine.h"

namespace loopspec::test {

// Tokens that hold the mark together, and how much of them comes before it and after it.
struct Cut {
  std::vector<std::string> words;
  size_t before = 0, after = 0;
  bool special = false;
};

// The mark in one token, in two at every place, in three at some, in one byte each, and in tokens
// that begin before it or end after it. `following`: what comes after the mark.
inline std::vector<Cut> CutsOf(const std::string& mark, const std::string& following) {
  std::vector<Cut> cuts = {{{mark}, 0, 0, true}, {{mark}}};
  const size_t size = mark.size(), half = size / 2;
  for (size_t at = 1; at < size; ++at) cuts.push_back({{mark.substr(0, at), mark.substr(at)}});
  cuts.push_back({{mark.substr(0, half), mark.substr(half, 1), mark.substr(half + 1)}});
  cuts.push_back({{mark.substr(0, 1), mark.substr(1, size - 2), mark.substr(size - 1)}});
  cuts.push_back({{}});
  for (const char c : mark) cuts.back().words.push_back(std::string(1, c));
  cuts.push_back({{"I " + mark.substr(0, half), mark.substr(half)}, 2});
  for (const size_t after : {size_t{1}, following.size()}) {
    const std::string more = following.substr(0, after);
    cuts.push_back({{mark.substr(0, size - 1), mark.substr(size - 1) + more}, 0, after});
    cuts.push_back({{"<" + mark + more}, 1, after});
    cuts.push_back(
        {{"." + mark.substr(0, 3), mark.substr(3, size - 5), mark.substr(size - 2) + more},
         1,
         after});
    if (after == following.size()) break;
  }
  return cuts;
}

// A model that says `before` letters, the mark as it is cut, and what follows it.
inline ScriptedOptions ScriptOf(const Cut& cut, size_t before, std::string_view following) {
  ScriptedOptions options;
  options.background = false;
  options.endless = false;
  options.special_words = cut.special;
  for (size_t i = 0; i < before; ++i) options.tokens.push_back("abcde"[i % 5]);
  for (const std::string& word : cut.words) {
    options.tokens.push_back(kScriptWords + static_cast<int32_t>(options.words.size()));
    if (word.size() == 1) {
      options.tokens.back() = static_cast<unsigned char>(word[0]);
    } else {
      options.words.push_back(word);
    }
  }
  for (const char c : following.substr(cut.after))
    options.tokens.push_back(static_cast<unsigned char>(c));
  return options;
}

// What an answer is compared by: its tokens, and why it ended.
struct WrittenIds {
  std::vector<int32_t> ids;
  FinishReason reason = FinishReason::kNone;
  bool operator==(const WrittenIds&) const = default;
};

inline WrittenIds WrittenIn(const Result& result) {
  WrittenIds written;
  for (const Token& token : result.choices[0].tokens) written.ids.push_back(token.id);
  written.reason = result.statistics().finish_reason;
  return written;
}

}  // namespace loopspec::test

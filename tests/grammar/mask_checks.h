// Masks held against trying every token by itself.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "grammar/grammar.h"

namespace loopspec::grammar {

inline bool InMask(const Mask& mask, int32_t id) {
  return ((*mask)[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
}

// Every token by itself: whether its bytes can follow.
inline void ExpectBruteForce(const State& state, const Vocabulary& vocabulary,
                             const std::string& where) {
  const Mask mask = state.NextTokens();
  int wrong = 0;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    State next = state;
    const bool allowed = next.AdvanceToken(id);
    if (allowed != InMask(mask, id) && ++wrong < 4) {
      ADD_FAILURE() << where << ": token " << id << " '" << vocabulary.bytes(id) << "' is "
                    << (allowed ? "missing" : "too much");
    }
  }
  EXPECT_EQ(wrong, 0) << where;
}

// A random allowed token at each place, and the mask of each place tried out.
// `seen`: called at each place with the text up to it.
using Seen = std::function<void(const State& state, const std::string& text)>;
inline void WalkRandomly(Grammar& grammar, const State& start, uint32_t seed, int steps,
                         const Seen& seen = {}) {
  std::mt19937 random(seed);
  State state = start;
  std::string text;
  for (int step = 0; step < steps; ++step) {
    ExpectBruteForce(state, *grammar.vocabulary(), text);
    if (seen) seen(state, text);
    const Mask mask = state.NextTokens();
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < grammar.vocabulary()->size(); ++id) {
      if (InMask(mask, id)) allowed.push_back(id);
    }
    ASSERT_FALSE(allowed.empty()) << "a dead end after " << text;
    const int32_t id = allowed[random() % allowed.size()];
    ASSERT_TRUE(state.AdvanceToken(id));
    if (state.ended()) break;
    text += grammar.vocabulary()->bytes(id);
  }
}

}  // namespace loopspec::grammar

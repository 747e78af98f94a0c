// Guesses from the text itself: the longest match, the latest place. Whatever is guessed, the text
// stays the same; so only tests like these see a poor guess.
#include "decode/ngram_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace loopspec {
namespace {

NgramIndex IndexOf(const std::vector<int32_t>& text) {
  NgramIndex index(static_cast<int64_t>(text.size()) + 16);
  for (const int32_t token : text) index.Push(token);
  return index;
}

void ExpectGuess(const Guess& guess, int32_t token, int match) {
  EXPECT_EQ(guess.token, token);
  EXPECT_EQ(guess.match, match);
}

TEST(NgramIndex, KnowsNothingOfWhatItHasNotSeen) {
  ExpectGuess(NgramIndex(0).Find({}), -1, 0);
  ExpectGuess(IndexOf({}).Find({}), -1, 0);
  ExpectGuess(IndexOf({1, 2, 3}).Find({}), -1, 0);
  // The end of the text has no continuation yet.
  ExpectGuess(IndexOf({7}).Find({}), -1, 0);
  ExpectGuess(IndexOf({7, 7}).Find({}), 7, 1);
}

// The last token alone stood before 7, most recently; the last three stood before 9.
TEST(NgramIndex, TheLongestMatchDecides) {
  ExpectGuess(IndexOf({1, 2, 3, 9, 5, 3, 7, 1, 2, 3}).Find({}), 9, 3);
  // Also where every shorter match says something else.
  ExpectGuess(IndexOf({1, 2, 3, 4, 30, 0, 2, 3, 4, 20, 0, 3, 4, 10, 0, 4, 40, 1, 2, 3, 4}).Find({}),
              30, 4);
}

TEST(NgramIndex, BetweenEqualMatchesTheLatest) {
  ExpectGuess(IndexOf({1, 2, 8, 1, 2, 9, 5, 1, 2}).Find({}), 9, 2);
}

TEST(NgramIndex, NoMatchIsLongerThanSix) {
  std::vector<int32_t> text = {1, 2, 3, 4, 5, 6, 7, 50};
  const std::vector<int32_t> again = {0, 2, 3, 4, 5, 6, 7, 60, 1, 2, 3, 4, 5, 6, 7};
  text.insert(text.end(), again.begin(), again.end());
  // All seven stood before 50, but the later six count as much.
  ExpectGuess(IndexOf(text).Find({}), 60, GuessRates::kLongestMatch);
}

// A branch's uncommitted tokens follow the text, the latest given first.
TEST(NgramIndex, ChainsGoOnFromTheText) {
  const NgramIndex index = IndexOf({1, 2, 3, 4, 8, 3, 5, 1, 2});
  ExpectGuess(index.Find({}), 3, 2);
  const int32_t one[] = {3};
  ExpectGuess(index.Find(one), 4, 3);  // 1 2 3, not 8 3
  const int32_t two[] = {4, 3};
  ExpectGuess(index.Find(two), 8, 4);
  const int32_t other[] = {8};
  ExpectGuess(index.Find(other), 3, 1);
  const int32_t unknown[] = {6};
  ExpectGuess(index.Find(unknown), -1, 0);
}

// Against trying every place, over few tokens so that matches of all lengths are there. A slot that
// another n-gram took may hide a match, never make one up.
TEST(NgramIndex, FindsWhatTryingEveryPlaceFinds) {
  std::mt19937 random(5);
  int found = 0, hidden = 0;
  for (int round = 0; round < 30; ++round) {
    std::vector<int32_t> text;
    const auto tokens = 2 + random() % 6;
    NgramIndex index(300);
    for (int i = 0; i < 300; ++i) {
      text.push_back(static_cast<int32_t>(random() % tokens));
      index.Push(text.back());
      Guess best;
      for (int n = 1; n <= GuessRates::kLongestMatch && n < std::ssize(text); ++n) {
        for (auto end = std::ssize(text) - 2; end >= n - 1; --end) {
          if (!std::equal(text.end() - n, text.end(), text.begin() + end - n + 1)) continue;
          best = {text[static_cast<size_t>(end) + 1], n};
          break;
        }
      }
      const Guess guess = index.Find({});
      ASSERT_LE(guess.match, best.match);
      found += best.match > 0 ? 1 : 0;
      if (guess.match < best.match) {
        ++hidden;
      } else {
        ASSERT_EQ(guess.token, best.token) << "after " << i + 1 << " tokens";
      }
    }
  }
  EXPECT_GT(found, 8000);
  EXPECT_LT(hidden, found / 5);
}

}  // namespace
}  // namespace loopspec

// Masks: equal to trying every token, over whole vocabularies, along random texts.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "grammar/grammar.h"
#include "tests/grammar/vocabularies.h"

namespace loopspec::grammar {
namespace {

bool InMask(const Mask& mask, int32_t id) {
  return ((*mask)[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
}

// Every token by itself: whether its bytes can follow.
void ExpectBruteForce(const State& state, const Vocabulary& vocabulary, const std::string& where) {
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
void WalkRandomly(Grammar& grammar, const State& start, uint32_t seed, int steps) {
  std::mt19937 random(seed);
  State state = start;
  std::string text;
  for (int step = 0; step < steps; ++step) {
    ExpectBruteForce(state, *grammar.vocabulary(), text);
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

TEST(GrammarMask, PatternsEqualBruteForce) {
  const std::string patterns[] = {"[a-z]+( [a-z]+){0,6}\\.",
                                  "\"([^\"\\\\]|\\\\.){0,20}\"",
                                  "(?=.*\\d).{3,40}",
                                  "\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2}Z?",
                                  "(once|upon|a time|there was)( and| or|,)*.{5}",
                                  "(.|\\n){0,300}"};
  for (const std::string& pattern : patterns) {
    const auto grammar = Grammar::FromRegex(pattern, DemoVocabulary());
    for (uint32_t seed = 0; seed < 3; ++seed) WalkRandomly(*grammar, grammar->Start(), seed, 12);
  }
}

TEST(GrammarMask, NestedRulesEqualBruteForce) {
  const auto grammar = Grammar::FromGbnf(
      "root ::= value\n"
      "value ::= list | text | [0-9]+\n"
      "list ::= \"[\" ws (value (\",\" ws value)*)? \"]\" ws\n"
      "text ::= \"\\\"\" [a-z ]* \"\\\"\" ws\n"
      "ws ::= [ \\n]*\n",
      DemoVocabulary());
  for (uint32_t seed = 0; seed < 6; ++seed) WalkRandomly(*grammar, grammar->Start(), seed, 25);
}

TEST(GrammarMask, StartsAfterAMarkAtEveryTokenBoundary) {
  // The mark in one token, in several, and within tokens that go on after it.
  std::vector<Vocabulary::Token> tokens{{"a"},  {"<"},   {"/t"}, {">"},          {"</t>", true},
                                        {">["}, {">]"},  {"["},  {"]"},          {"1"},
                                        {"<<"}, {"t>["}, {"/"},  {"<end>", true}};
  const auto vocabulary = std::make_shared<Vocabulary>(std::move(tokens), std::vector<int32_t>{13});
  const auto grammar = Grammar::FromRegex("\\[1*\\]", vocabulary);
  State state = grammar->StartAfter("</t>");
  EXPECT_TRUE(state.IsFree());
  EXPECT_FALSE(state.MayEnd());
  EXPECT_FALSE(state.AdvanceToken(13));
  EXPECT_TRUE(state.Advance("a[<</t"));
  EXPECT_TRUE(InMask(state.NextTokens(), 5));   // >[
  EXPECT_FALSE(InMask(state.NextTokens(), 6));  // >]
  EXPECT_TRUE(state.AdvanceToken(5));
  EXPECT_FALSE(state.IsFree());
  EXPECT_TRUE(state.AdvanceToken(9));
  EXPECT_FALSE(state.AdvanceToken(4));  // a special token is no text
  EXPECT_TRUE(state.AdvanceToken(8));
  EXPECT_TRUE(state.AdvanceToken(13));
  State whole = grammar->StartAfter("</t>");
  EXPECT_TRUE(whole.AdvanceToken(4));
  EXPECT_FALSE(whole.IsFree());
  EXPECT_FALSE(whole.Advance("1"));
  for (uint32_t seed = 0; seed < 40; ++seed) {
    WalkRandomly(*grammar, grammar->StartAfter("</t>"), seed, 20);
  }
}

TEST(GrammarMask, CopiesGoTheirOwnWays) {
  const auto grammar = Grammar::FromRegex("a(b|c)d", ByteVocabulary());
  State first = grammar->Start();
  ASSERT_TRUE(first.Advance("a"));
  State second = first;
  EXPECT_TRUE(first == second);
  ASSERT_TRUE(first.Advance("b"));
  ASSERT_TRUE(second.Advance("c"));
  EXPECT_TRUE(first == second);  // the same can follow
  EXPECT_EQ(second.CountValid("dx"), 1u);
  EXPECT_FALSE(second.Advance("dx"));
  EXPECT_TRUE(second.Advance("d"));
  EXPECT_TRUE(second.MustEnd());
  EXPECT_TRUE(second.AdvanceToken(256));
  EXPECT_FALSE(second.AdvanceToken(256));
  EXPECT_EQ(grammar->Start().ForcedBytes(9), "a");
}

}  // namespace
}  // namespace loopspec::grammar

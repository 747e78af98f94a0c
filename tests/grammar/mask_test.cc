// Masks: equal to trying every token, over whole vocabularies, along random texts.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "grammar/grammar.h"
#include "tests/grammar/mask_checks.h"
#include "tests/grammar/vocabularies.h"

namespace loopspec::grammar {
namespace {

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

// A walk takes everything below a token's place at once where the language stays as it is; the same
// must come of it as of each token by itself, also where a text may end within a token.
TEST(GrammarMask, LoopsEqualBruteForce) {
  const std::string patterns[] = {"\"[ a-z]*\"", "[ a-z]*x", "[^q]*q[^z]*z?", "([ a-z]|[A-Z]z)*\\.",
                                  "[ a-zA-Z]*"};
  for (const std::string& pattern : patterns) {
    const auto grammar = Grammar::FromRegex(pattern, DemoVocabulary());
    for (uint32_t seed = 0; seed < 2; ++seed) WalkRandomly(*grammar, grammar->Start(), seed, 8);
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
  const Mark mark[] = {{"</t>"}};
  State state = grammar->StartAfter(mark);
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
  State whole = grammar->StartAfter(mark);
  EXPECT_TRUE(whole.AdvanceToken(4));
  EXPECT_FALSE(whole.IsFree());
  EXPECT_FALSE(whole.Advance("1"));
  for (uint32_t seed = 0; seed < 40; ++seed) {
    WalkRandomly(*grammar, grammar->StartAfter(mark), seed, 20);
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

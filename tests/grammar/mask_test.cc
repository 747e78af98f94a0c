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

// After each of the texts, and along random ones.
void ExpectBruteForceAfter(const std::string& schema, std::initializer_list<const char*> texts) {
  const auto grammar = Grammar::FromSchema(schema, DemoVocabulary());
  for (const std::string text : texts) {
    State state = grammar->Start();
    ASSERT_TRUE(state.Advance(text)) << schema << " " << text;
    ExpectBruteForce(state, *DemoVocabulary(), text);
  }
  WalkRandomly(*grammar, grammar->Start(), 1, 6);
}

// Tokens of plain characters are taken by their length, without a walk.
TEST(GrammarMask, PlainTokensByTheirLengthEqualBruteForce) {
  for (const char* counts : {"\"maxLength\": 3", "\"maxLength\": 13", "\"maxLength\": 40",
                             "\"minLength\": 3, \"maxLength\": 9"}) {
    ExpectBruteForceAfter(std::string(R"({"type": "string", )") + counts + "}",
                          {"\"", "\"a", "\"\\u00e", "\"\xC3", "\"\xC3\xA9t"});
  }
}

// The names of properties are left out of the other names.
TEST(GrammarMask, OtherNamesEqualBruteForce) {
  const char* const names =
      R"("properties": {"name": {"type": "null"}, "names": {"type": "null"}, "note": {"type": "null"},
                        "\u00e9t\u00e9": {"type": "null"}})";
  ExpectBruteForceAfter(
      std::string(R"({"type": "object", "additionalProperties": {"type": "null"}, )") + names + "}",
      {"{\"", "{\"n", "{\"name", "{\"names", "{\"x", "{\"\xC3\xA9t", "{\"\\u00e"});
  for (const char* bound : {"5", "6", "20"}) {
    ExpectBruteForceAfter(std::string(R"({"type": "object", "propertyNames": {"maxLength": )") +
                              bound + "}, " + names + "}",
                          {"{\"", "{\"n", "{\"na", "{\"nam", "{\"namex"});
  }
}

// A pattern that is searched for is found after any text.
TEST(GrammarMask, SearchedPatternsEqualBruteForce) {
  for (const char* counts : {"", ", \"maxLength\": 30", ", \"minLength\": 1, \"maxLength\": 12"}) {
    for (const char* pattern : {"the", "^[^q]*$", "^a.*b.*$", "e+$", "^(?!the)", "[^ -~]"}) {
      ExpectBruteForceAfter(
          std::string(R"({"type": "string", "pattern": ")") + pattern + "\"" + counts + "}",
          {"\"", "\"a", "\"at"});
    }
  }
}

// An item is compared with those before, which only matters where it ends.
TEST(GrammarMask, DifferentItemsEqualBruteForce) {
  for (const char* item : {R"("type": "string")", R"("type": "string", "maxLength": 4)",
                           R"("type": ["string", "array", "null"], "maxItems": 1)"}) {
    ExpectBruteForceAfter(
        std::string(R"({"type": "array", "maxItems": 3, "uniqueItems": true, "items": {)") + item +
            "}}",
        {"[", "[\"", "[\"the\"", "[\"the\",", "[\"the\",\"", "[\"the\",\"t", "[\"the\", \"the",
         "[\"the\",\"\\u0074h", "[\"the\",\"o\",\"", "[\"the\",\"o\",\"th"});
  }
  ExpectBruteForceAfter(
      R"({"type": "array", "uniqueItems": true, "items": {"type": "string", "pattern": "^(a|b|the)$"}})",
      {"[", "[\"", "[\"a\",\"", "[\"a\",\"b\"", "[\"a\",\"b\",\"t", "[\"the\",\"a\",\"b"});
}

TEST(GrammarMask, DifferentObjectsEqualBruteForce) {
  const std::string pair =
      R"("properties": {"k": {"type": "string"}, "v": {"type": "string", "maxLength": 6}})";
  ExpectBruteForceAfter(
      R"({"type": "array", "maxItems": 3, "uniqueItems": true, "items": {"type": "object", )" +
          pair + R"(, "required": ["k", "v"], "additionalProperties": false}})",
      {"[{\"k\":\"a\",\"v\":\"b", "[{\"k\":\"a\",\"v\":\"b\"},{\"k\":\"",
       "[{\"k\":\"a\",\"v\":\"the\"},{\"k\":\"a\",\"v\":\"",
       "[{\"k\":\"a\",\"v\":\"the\"},{\"k\":\"a\",\"v\":\"th",
       "[{\"k\":\"a\",\"v\":\"the\"},{\"k\":\"b\",\"v\":\"th",
       "[{\"k\":\"a\",\"v\":\"the\"},{\"k\":\"a\",\"v\":\"x\"},{\"k\":\"a\",\"v\":\"the"});
  // A name that comes twice has its last value.
  ExpectBruteForceAfter(
      R"({"type": "array", "uniqueItems": true, "items": {"type": "object", "additionalProperties": {"enum": ["a", "b"]}}})",
      {"[{\"x\":\"a\"},{\"x\":\"", "[{\"x\":\"a\"},{\"x\":\"b\",\"x\":\"",
       "[{\"x\":\"a\"},{\"x\":\"b\",\"\\u0078\":\""});
  ExpectBruteForceAfter(
      R"({"type": "array", "uniqueItems": true, "items": {"type": "object", "maxProperties": 1,
          "properties": {"x": {"type": "array", "uniqueItems": true, "items": {"type": "string"}}}}})",
      {"[{\"x\":[\"a\",\"", "[{\"x\":[\"a\"]},{\"x\":[\"", "[{\"x\":[\"a\"]},{\"x\":[\"a\""});
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

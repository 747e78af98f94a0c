// Patterns beside bounds on the length: what lengths say is what a search finds, and masks far from
// a bound and near it equal trying every token.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>

#include "grammar/characters.h"
#include "grammar/grammar.h"
#include "grammar/pattern.h"
#include "grammar/regular.h"
#include "tests/grammar/mask_checks.h"
#include "tests/grammar/vocabularies.h"

namespace loopspec::grammar {
namespace {

// A pattern and a bound on the length, in an automaton that knows lengths or in one that searches.
struct Bounded {
  Bounded(const std::string& pattern, uint32_t min, uint32_t max, bool counts) {
    const Node any = CharacterNode(regular, CharacterSet::All(), Writing::kJsonString);
    if (counts) regular.CountCharacters(any);
    language = ParsePattern(regular, pattern, Writing::kJsonString, Anchoring::kWhole);
    node = regular.And({language, regular.Repeat(any, min, max)});
  }
  Regular regular;
  Node language, node;
};

std::string RandomPattern(std::mt19937& random, int depth) {
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random()) % n; };
  static constexpr std::string_view kAtoms[] = {"a", "[ab]", "\u00E9", ".", "\\n", "b"};
  if (depth == 0) return std::string(kAtoms[below(std::size(kAtoms))]);
  const std::string one = RandomPattern(random, depth - 1);
  switch (below(6)) {
    case 0:
      return one + RandomPattern(random, depth - 1);
    case 1:
      return "(" + one + "|" + RandomPattern(random, depth - 1) + ")";
    case 2:
      return "(" + one + ")*";
    case 3:
      return "(" + one + ")?" + RandomPattern(random, depth - 1);
    case 4:
      return "(" + one + "){" + std::to_string(below(3)) + "," + std::to_string(2 + below(3)) + "}";
    default:
      return one + "(" + RandomPattern(random, depth - 1) + ")+";
  }
}

TEST(GrammarLengths, AreThoseOfThePattern) {
  const struct {
    const char* pattern;
    uint32_t min, max;
    bool all;
    uint32_t completion;
  } cases[] = {{"abc", 3, 3, true, 3},
               {"[a-z]{2,5}x?", 2, 6, true, 2},
               {"(ab)*", 0, kUnbounded, false, 2},
               {"a|bcd", 1, 3, false, 3},
               {"\u00E9+", 1, kUnbounded, true, 1},
               {"a*b{3}", 3, kUnbounded, true, 4}};
  for (const auto& expected : cases) {
    Bounded bounded(expected.pattern, 0, kUnbounded, true);
    const Regular::Lengths lengths = bounded.regular.LengthsOf(bounded.language);
    ASSERT_TRUE(lengths.known) << expected.pattern;
    EXPECT_EQ(lengths.min, expected.min) << expected.pattern;
    EXPECT_EQ(lengths.max, expected.max) << expected.pattern;
    EXPECT_EQ(lengths.all, expected.all) << expected.pattern;
    EXPECT_EQ(lengths.completion, expected.completion) << expected.pattern;
  }
}

// What a search has found stays found: no state grows with what may come after it.
TEST(GrammarLengths, AnyCharactersTakeInAllOtherChoices) {
  Bounded bounded("b(cd)*", 0, kUnbounded, true);
  Regular& regular = bounded.regular;
  const Node any = regular.Repeat(regular.any_character(), 0, kUnbounded);
  const Node quote = regular.Byte('"');
  const Node found = regular.Concat({any, bounded.language, any});
  EXPECT_EQ(regular.Or({any, found}), any);
  EXPECT_EQ(regular.Or({kEmpty, found, any}), any);
  EXPECT_EQ(regular.Or({regular.Concat(found, quote), regular.Concat(any, quote)}),
            regular.Concat(any, quote));
  EXPECT_EQ(regular.Or({quote, regular.Concat(any, quote)}), regular.Concat(any, quote));
  // These are not contained: the quote is no character, and one tail is not the other.
  EXPECT_NE(regular.Or({quote, any}), any);
  EXPECT_TRUE(regular.Matches(regular.Or({quote, any}), "\""));
  const Node either = regular.Or({regular.Concat(any, quote), found});
  EXPECT_TRUE(regular.Matches(either, "ab"));
  EXPECT_FALSE(regular.Matches(either, "a"));
  EXPECT_TRUE(regular.Matches(either, "a\""));
}

// The same walk in both automata: after each byte that one of them allows the other does too.
TEST(GrammarLengths, SayWhatASearchFinds) {
  std::mt19937 random(7);
  int known = 0, dead = 0, steps = 0;
  for (int round = 0; round < 400; ++round) {
    const std::string pattern = RandomPattern(random, 1 + round % 3);
    const auto min = static_cast<uint32_t>(random() % 5);
    const auto max = min + static_cast<uint32_t>(random() % 5);
    Bounded counted(pattern, min, max, true), searched(pattern, min, max, false);
    known += counted.regular.LengthsOf(counted.language).known ? 1 : 0;
    const bool alive = searched.regular.Alive(searched.node);
    ASSERT_EQ(counted.regular.Alive(counted.node), alive) << pattern << " " << min << " " << max;
    dead += alive ? 0 : 1;
    Node a = counted.node, b = searched.node;
    for (int step = 0; alive && step < 12; ++step, ++steps) {
      std::string allowed;
      for (int byte = 0; byte < 256; ++byte) {
        const auto c = static_cast<uint8_t>(byte);
        const bool goes_on = searched.regular.Next(b, c) != kNothing;
        ASSERT_EQ(counted.regular.Next(a, c) != kNothing, goes_on)
            << pattern << " " << min << " " << max << " byte " << byte;
        if (goes_on) allowed += static_cast<char>(byte);
      }
      ASSERT_EQ(counted.regular.Nullable(a), searched.regular.Nullable(b)) << pattern;
      if (allowed.empty()) break;
      const auto c = static_cast<uint8_t>(allowed[random() % allowed.size()]);
      a = counted.regular.Next(a, c);
      b = searched.regular.Next(b, c);
    }
  }
  EXPECT_GT(known, 300);
  EXPECT_GT(dead, 20);
  EXPECT_GT(steps, 1000);
}

TEST(GrammarLengths, MasksEqualBruteForceFarFromTheBoundAndNearIt) {
  const std::string schemas[] = {
      R"({"type": "string", "pattern": "^[a-z ]+$", "maxLength": 300})",
      R"({"type": "string", "pattern": "^[a-z ]+$", "minLength": 9, "maxLength": 24})",
      R"({"type": "string", "pattern": "^(a*|b{40})$", "maxLength": 30})",
      R"({"type": "string", "pattern": "e", "maxLength": 12})",
      R"({"type": "string", "pattern": "^.{2,9}$", "maxLength": 6})",
      R"({"type": "string", "pattern": "^x(yz)*$", "minLength": 4, "maxLength": 8})"};
  for (const std::string& schema : schemas) {
    const auto grammar = Grammar::FromSchema(schema, DemoVocabulary());
    for (uint32_t seed = 0; seed < 3; ++seed) WalkRandomly(*grammar, grammar->Start(), seed, 20);
  }
  const auto grammar = Grammar::FromSchema(schemas[2], ByteVocabulary());
  State state = grammar->Start();
  EXPECT_FALSE(state.Advance("\"b"));
  EXPECT_TRUE(state.Advance("\"aaa\""));
}

}  // namespace
}  // namespace loopspec::grammar

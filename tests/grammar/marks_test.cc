// Free text before a grammar, up to a mark that must come and up to one that need not: held against
// a search for the marks in the text.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "grammar/grammar.h"
#include "tests/grammar/mask_checks.h"

namespace loopspec::grammar {
namespace {

constexpr int32_t kThought = 4, kCall = 5, kOther = 6, kEnd = 24;

// The marks </t> and <c> as special tokens, in pieces, and within tokens that hold more.
std::shared_ptr<const Vocabulary> Tokens() {
  std::vector<Vocabulary::Token> tokens{
      {"a"},    {"<"},  {"/t"},  {">"},          {"</t>", true}, {"<c>", true}, {"<o>", true},
      {">["},   {">]"}, {"["},   {"]"},          {"1"},          {"<<"},        {"t>["},
      {"/"},    {"c"},  {"c>["}, {"><c>"},       {"<c>"},        {"c>[1"},      {"</t><c>["},
      {"\xFF"}, {"o>"}, {" "},   {"<end>", true}};
  return std::make_shared<Vocabulary>(std::move(tokens), std::vector<int32_t>{kEnd});
}

enum class Part { kThinking, kBeforeCall, kGrammar };

// Where a text of the grammar \[1*\] after </t>, which must come, and <c>, which need not, stands.
struct Place {
  Part part;
  std::string_view rest;  // what the grammar reads
};
Place PlaceOf(std::string_view text) {
  const size_t thought = text.find("</t>");
  if (thought == text.npos) return {Part::kThinking, ""};
  const std::string_view answer = text.substr(thought + 4);
  const size_t call = answer.find("<c>");
  if (call == answer.npos) return {Part::kBeforeCall, ""};
  return {Part::kGrammar, answer.substr(call + 3)};
}
bool IsComplete(std::string_view rest) {
  return rest.size() >= 2 && rest.front() == '[' && rest.back() == ']' &&
         rest.substr(1, rest.size() - 2).find_first_not_of('1') == rest.npos;
}

const std::vector<Mark> kBoth = {{"</t>"}, {"<c>", true}};

TEST(GrammarMarks, ThinkingThenACallThatNeedNotCome) {
  const auto grammar = Grammar::FromRegex("\\[1*\\]", Tokens());
  int ends[3] = {};
  for (uint32_t seed = 0; seed < 300; ++seed) {
    WalkRandomly(*grammar, grammar->StartAfter(kBoth), seed, 25,
                 [&](const State& state, const std::string& text) {
                   const Place place = PlaceOf(text);
                   const bool complete = place.part == Part::kGrammar
                                             ? IsComplete(place.rest)
                                             : place.part != Part::kThinking;
                   EXPECT_EQ(state.MayEnd(), complete) << text;
                   EXPECT_EQ(InMask(state.NextTokens(), kEnd), complete) << text;
                   EXPECT_EQ(state.IsFree(), place.part != Part::kGrammar) << text;
                   const bool free = place.part != Part::kGrammar;
                   for (const int32_t id : {kThought, kCall, kOther}) {
                     EXPECT_EQ(InMask(state.NextTokens(), id), free) << text << id;
                   }
                   if (free) {
                     EXPECT_EQ(state.ForcedBytes(9), "") << text;
                   }
                   ends[static_cast<int>(place.part)] += 1;
                 });
  }
  for (const int count : ends) EXPECT_GT(count, 200);
}

// Every token after every text of two tokens: its bytes are free, or lead to a beginning of [1*].
TEST(GrammarMarks, EveryTokenAfterEveryShortText) {
  const auto vocabulary = Tokens();
  const auto grammar = Grammar::FromRegex("\\[1*\\]", vocabulary);
  const auto viable = [](const std::string& text) {
    const Place place = PlaceOf(text);
    return place.part != Part::kGrammar || place.rest.empty() ||
           (place.rest.front() == '[' &&
            place.rest.find_first_not_of('1', 1) >= place.rest.size() - 1 &&
            (place.rest.back() != ']' || IsComplete(place.rest)) &&
            place.rest.find_first_not_of("[1]") == place.rest.npos &&
            place.rest.find('[', 1) == place.rest.npos);
  };
  int tried = 0;
  for (const char* before : {"", "</t>", "</t>a<", "<", "</t><c", "</t><c>", "</t><c>["}) {
    for (int32_t first = 0; first < vocabulary->size(); ++first) {
      State state = grammar->StartAfter(kBoth);
      ASSERT_TRUE(state.Advance(before));
      if (first == kEnd || !state.AdvanceToken(first)) continue;
      const std::string text = before + vocabulary->bytes(first);
      const bool free = PlaceOf(text).part != Part::kGrammar;
      for (int32_t id = 0; id < kEnd; ++id) {
        const bool special = vocabulary->IsSpecial(id);
        EXPECT_EQ(InMask(state.NextTokens(), id),
                  viable(text + vocabulary->bytes(id)) && (free || !special))
            << text << " then " << vocabulary->bytes(id);
        ++tried;
      }
    }
  }
  EXPECT_GT(tried, 1000);
}

// Models write line breaks after their thinking; they are no part of the answer.
TEST(GrammarMarks, SpaceAfterAMark) {
  const auto grammar = Grammar::FromRegex("1( 1)*", Tokens());
  const std::vector<Mark> marks = {{"</t>", false, true}};
  for (const char* text : {"</t>1", "a </t>\n\n1 1", "</t> \t\r\n1", "</t>                1"}) {
    State state = grammar->StartAfter(marks);
    EXPECT_TRUE(state.Advance(text) && state.MayEnd()) << text;
  }
  for (const char* text : {"</t>\n", "</t>                 1", "</t>\n1\n", "</t>a1"}) {
    State state = grammar->StartAfter(marks);
    EXPECT_FALSE(state.Advance(text) && state.MayEnd()) << text;
  }
  State strict = grammar->StartAfter(std::vector<Mark>{{"</t>"}});
  EXPECT_FALSE(strict.Advance("</t>\n1"));
}

// Thinking that the model opens itself, or does not.
TEST(GrammarMarks, ThinkingThatNeedNotBegin) {
  const auto grammar = Grammar::FromRegex("\\[1*\\]", Tokens());
  const std::vector<Mark> thinking = {{"</t>", false, true, "<o>"}};
  const std::vector<Mark> both = {{"</t>", false, true, "<o>"}, {"<c>", true}};
  struct Row {
    const char* text;
    bool alone, before_call;  // whether it is complete after `thinking` and after `both`
  };
  const Row rows[] = {
      {"[1]", true, true},
      {"<o>a</t>[1]", true, true},
      {" \n<o></t>\n\n[]", true, true},
      {"<o>a", false, false},
      {"a</t>[1]", false, true},
      {"<o>a</t>a", false, true},
      {"<o><c>a</t>a", false, true},
      {"<o>a</t><c>a", false, false},
      {"<o>a</t><c>[1]", false, true},
      {"<c>[]", false, true},
      {" <o>a<c>[1]", false, false},
      {"a<o>a<c>[1]", false, true},
  };
  for (const Row& row : rows) {
    State state = grammar->StartAfter(thinking);
    EXPECT_EQ(state.Advance(row.text) && state.MayEnd(), row.alone) << row.text;
    state = grammar->StartAfter(both);
    EXPECT_EQ(state.Advance(row.text) && state.MayEnd(), row.before_call) << row.text;
  }
  // The mark as a special token, where it may come and where it may not.
  State state = grammar->StartAfter(thinking);
  EXPECT_FALSE(state.IsFree());
  EXPECT_FALSE(InMask(state.NextTokens(), kCall));
  ASSERT_TRUE(state.AdvanceToken(kOther));
  EXPECT_TRUE(state.IsFree());
  EXPECT_FALSE(state.MayEnd());
  ASSERT_TRUE(state.AdvanceToken(kThought));
  EXPECT_FALSE(state.AdvanceToken(kOther));
  EXPECT_TRUE(state.Advance("[]") && state.MustEnd());
  for (uint32_t seed = 0; seed < 60; ++seed) {
    WalkRandomly(*grammar, grammar->StartAfter(thinking), seed, 20);
    WalkRandomly(*grammar, grammar->StartAfter(both), seed, 20);
  }
}

TEST(GrammarMarks, StartsAreToldApart) {
  const auto grammar = Grammar::FromRegex("1", Tokens());
  const std::vector<Mark> chains[] = {
      {}, {{"</t>"}}, {{"</t>", true}}, kBoth, {{"<c>", true}, {"</t>"}}};
  for (int round = 0; round < 2; ++round) {
    for (const std::vector<Mark>& marks : chains) {
      State state = grammar->StartAfter(marks);
      EXPECT_EQ(state.IsFree(), !marks.empty());
      EXPECT_EQ(state.MayEnd(), !marks.empty() && marks.front().may_end);
      for (const Mark& mark : marks) EXPECT_TRUE(state.Advance("1" + mark.text));
      EXPECT_FALSE(state.IsFree());
      EXPECT_TRUE(state.Advance("1"));
      EXPECT_TRUE(state.MustEnd());
    }
  }
  const std::vector<Mark> empty = {{""}};
  EXPECT_THROW(grammar->StartAfter(empty), Error);
  const std::vector<Mark> many(9, Mark{"a"});
  EXPECT_THROW(grammar->StartAfter(many), Error);
  const std::vector<Mark> vast = {{std::string(1025, 'a')}};
  EXPECT_THROW(grammar->StartAfter(vast), Error);
}

}  // namespace
}  // namespace loopspec::grammar

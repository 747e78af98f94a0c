// The elements that our GBNF has beyond llama.cpp's: %json, %until, %without and %special, each
// held against a matcher written by hand.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "grammar/grammar.h"
#include "tests/grammar/mask_checks.h"
#include "tests/grammar/vocabularies.h"

namespace loopspec::grammar {
namespace {

bool Takes(Grammar& grammar, std::string_view text) {
  State state = grammar.Start();
  return state.Advance(text) && state.MayEnd();
}

std::string ElementError(const std::string& text) {
  try {
    Grammar::FromGbnf(text, nullptr);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Every text over a and b, up to `most` long.
std::vector<std::string> ShortTexts(size_t most) {
  std::vector<std::string> texts{""};
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].size() == most) break;
    texts.push_back(texts[i] + 'a');
    texts.push_back(texts[i] + 'b');
  }
  return texts;
}

TEST(GbnfElements, UntilAndWithoutOnEveryShortText) {
  for (const std::string mark : {"a", "ab", "aa", "aba", "abab", "aabaa", "bbab"}) {
    const auto until = Grammar::FromGbnf("root ::= %until \"" + mark + "\"", nullptr);
    const auto without = Grammar::FromGbnf("root ::= %without \"" + mark + "\"", nullptr);
    const auto twice = Grammar::FromGbnf(
        "root ::= (%until \"" + mark + "\"){2} %without \"" + mark + "\"", nullptr);
    for (const std::string& text : ShortTexts(9)) {
      const size_t first = text.find(mark);
      EXPECT_EQ(Takes(*until, text), first != text.npos && first + mark.size() == text.size())
          << mark << " " << text;
      EXPECT_EQ(Takes(*without, text), first == text.npos) << mark << " " << text;
      // Marks are counted without overlap.
      int count = 0;
      for (size_t at = first; at != text.npos; at = text.find(mark, at + mark.size())) ++count;
      EXPECT_EQ(Takes(*twice, text), count == 2) << mark << " " << text;
    }
  }
}

TEST(GbnfElements, FreeTextIsCharacters) {
  for (const char* text :
       {"root ::= %until \"\\n\\u00e9\"", "root ::= %without \"xyz\" \"\\n\\u00e9\"",
        "root ::= .* \"\\n\\u00e9\"", "root ::= [^]* \"\\n\\u00e9\""}) {
    const auto grammar = Grammar::FromGbnf(text, nullptr);
    EXPECT_TRUE(Takes(*grammar, "a\r\n\xC3\xA8\t\xF0\x9F\x98\x80\xED\x9F\xBF\n\xC3\xA9")) << text;
    for (const char* wrong : {"\xC3", "\xFF\n\xC3\xA9", "\xED\xA0\x80\n\xC3\xA9",
                              "\xC0\x80\n\xC3\xA9", "\xF4\x90\x80\x80\n\xC3\xA9", "a\n\xC3\xA8"}) {
      EXPECT_FALSE(Takes(*grammar, wrong)) << text;
    }
  }
}

// ---- A parameter's raw text ----

constexpr const char* kParameters = R"(
root ::= "<f=get>\n" parameter* "</f>" .*
parameter ::= "<p=" [a-z]+ ">\n" %until "\n</p>" "\n"
)";
bool TakesParameters(std::string_view text) {
  const auto take = [&](std::string_view what) {
    if (!text.starts_with(what)) return false;
    text.remove_prefix(what.size());
    return true;
  };
  if (!take("<f=get>\n")) return false;
  while (take("<p=")) {
    size_t name = 0;
    while (name < text.size() && text[name] >= 'a' && text[name] <= 'z') ++name;
    if (name == 0) return false;
    text.remove_prefix(name);
    if (!take(">\n")) return false;
    const size_t end = text.find("\n</p>");
    if (end == text.npos) return false;
    text.remove_prefix(end + 5);
    if (!take("\n")) return false;
  }
  return take("</f>");
}

TEST(GbnfElements, ParametersOfRawText) {
  const auto grammar = Grammar::FromGbnf(kParameters, DemoVocabulary());
  const std::string right =
      "<f=get>\n<p=city>\nParis \"\\ </p>\n</\n</p>\n<p=x>\n\n</p>\n</f> done\n";
  EXPECT_TRUE(Takes(*grammar, right));
  std::mt19937 random(3);
  int valid = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string text = right;
    for (int changes = 1 + static_cast<int>(random() % 3); changes > 0; --changes) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text.erase(at, 1 + random() % 8);
          break;
        case 1:
          text.insert(at, 1, "<>/pf=\nax"[random() % 9]);
          break;
        default:
          text.insert(at, right, random() % right.size(), random() % 12);
      }
    }
    const bool takes = TakesParameters(text);
    valid += takes ? 1 : 0;
    EXPECT_EQ(Takes(*grammar, text), takes) << text;
  }
  EXPECT_GT(valid, 2000);
  for (uint32_t seed = 0; seed < 6; ++seed) WalkRandomly(*grammar, grammar->Start(), seed, 20);
}

// ---- Schemas ----

// {"v": integer, "k": [tree, ...]}, `k` optional, in this order, with JSON's white space.
class TreeMatcher {
 public:
  explicit TreeMatcher(std::string_view text) : text_(text) {}
  bool Tree() {
    if (!Take('{')) return false;
    Space();
    if (!Key("\"v\"") || !Integer()) return false;
    Space();
    if (Take(',')) {
      Space();
      if (!Key("\"k\"") || !Take('[')) return false;
      Space();
      if (!Take(']')) {
        do {
          Space();
          if (!Tree()) return false;
          Space();
        } while (Take(','));
        if (!Take(']')) return false;
      }
      Space();
    }
    return Take('}');
  }
  bool Integer() {
    Take('-');
    if (Take('0')) return true;
    size_t digits = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_, ++digits;
    return digits > 0;
  }
  bool Word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  bool AtEnd() const { return at_ == text_.size(); }

 private:
  bool Key(std::string_view key) {
    if (!Word(key)) return false;
    Space();
    if (!Take(':')) return false;
    Space();
    return true;
  }
  void Space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string::npos)
      ++at_;
  }
  bool Take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::string_view text_;
  size_t at_ = 0;
};

// Two schemas, one of them recursive, whose names mean different things.
constexpr const char* kTwoSchemas = R"(
root ::= "A" tree ("B" %json {"$defs": {"tree": {"enum": ["}", "\"{"]}}, "$ref": "#/$defs/tree"})? "C"
tree ::= %json {"$ref": "#/$defs/tree",  # no comment: a mistake in the schema
})";
constexpr const char* kTree = R"(
root ::= "A" tree ("B" %json {"$defs": {"tree": {"enum": ["}", "\"{"]}},
                              "$ref": "#/$defs/tree"})? "C"
tree ::= %json {
  "$defs": {"tree": {"type": "object", "additionalProperties": false, "required": ["v"],
                     "properties": {"v": {"type": "integer"},
                                    "k": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}},
  "$ref": "#/$defs/tree"}  # the end
)";
bool TakesTree(std::string_view text) {
  TreeMatcher matcher(text);
  if (!matcher.Word("A") || !matcher.Tree()) return false;
  if (matcher.Word("B") && !matcher.Word(R"("}")") && !matcher.Word(R"("\"{")")) return false;
  return matcher.Word("C") && matcher.AtEnd();
}

TEST(GbnfElements, TwoSchemasOneOfThemRecursive) {
  EXPECT_NE(ElementError(kTwoSchemas).find("the schema in line 3"), std::string::npos)
      << ElementError(kTwoSchemas);
  const auto grammar = Grammar::FromGbnf(kTree, DemoVocabulary());
  const std::string right =
      R"(A{"v": 1, "k": [{"v":-20,"k":[]}, {"v": 0 , "k" :[ {"v":7} ]}]}B"\"{"C)";
  ASSERT_TRUE(TakesTree(right));
  EXPECT_TRUE(Takes(*grammar, right));
  std::mt19937 random(5);
  int valid = 0;
  for (int i = 0; i < 60'000; ++i) {
    std::string text = right;
    for (int changes = static_cast<int>(random() % 3); changes >= 0; --changes) {
      const size_t at = random() % text.size();
      if (random() % 2 == 0) {
        text.erase(at, 1 + random() % 9);
      } else if (random() % 2 == 0) {
        text.insert(at, 1, "{}[],:1 \n\"vkABC"[random() % 15]);
      } else {
        text.insert(at, right, random() % right.size(), random() % 16);
      }
    }
    const bool takes = TakesTree(text);
    valid += takes ? 1 : 0;
    EXPECT_EQ(Takes(*grammar, text), takes) << text;
  }
  EXPECT_GT(valid, 1000);
  for (uint32_t seed = 0; seed < 10; ++seed) {
    WalkRandomly(*grammar, grammar->Start(), seed, 40,
                 [](const State& state, const std::string& text) {
                   EXPECT_EQ(state.MayEnd(), TakesTree(text)) << text;
                 });
  }
}

TEST(GbnfElements, SchemasWithoutAType) {
  for (const char* schema : {"{}", "true", "{\"description\": \"any\"}"}) {
    const auto grammar =
        Grammar::FromGbnf("root ::= \"<\" (%json " + std::string(schema) + " \">\")+", nullptr);
    EXPECT_TRUE(Takes(*grammar, "<{\"a\": [1, null]}>\"x\">-1.5e3>true>")) << schema;
    EXPECT_FALSE(Takes(*grammar, "<{\"a\": [1, null]>")) << schema;
    EXPECT_FALSE(Takes(*grammar, "<>")) << schema;
  }
  EXPECT_NE(ElementError("root ::= %json false").find("no text"), std::string::npos);
}

TEST(GbnfElements, SchemasGoByTheOptions) {
  const std::string text =
      "root ::= %json {\"type\": \"object\", \"minProperties\": 3} | "
      "%json {\"type\": \"object\", \"minProperties\": 4}";
  EXPECT_NE(ElementError(text).find("minProperties"), std::string::npos);
  SchemaOptions options;
  options.strict = false;
  EXPECT_EQ(Grammar::FromGbnf(text, nullptr, options)->ignored(),
            std::vector<std::string>{"minProperties"});
  options.space = JsonSpace::kNone;
  EXPECT_FALSE(Takes(*Grammar::FromGbnf("root ::= %json {}", nullptr, options), "{\"a\": 1}"));
}

// ---- Special tokens ----

constexpr int32_t kOpenToken = 0, kCloseToken = 1, kOtherToken = 2;

// Marks as special tokens and as text.
std::shared_ptr<const Vocabulary> SpecialTokens() {
  std::vector<Vocabulary::Token> tokens{
      {"<c>", true}, {"</c>", true}, {"<o>", true}, {"<"},    {"c>"}, {"</"}, {">"},  {"c"},
      {"o>"},        {"1"},          {"<c>"},       {"</c>"}, {"a"},  {"<<"}, {"1<"}, {">a<"}};
  tokens.push_back({"<end>", true});
  const auto end = static_cast<int32_t>(tokens.size() - 1);
  return std::make_shared<Vocabulary>(std::move(tokens), std::vector<int32_t>{end});
}

TEST(GbnfElements, SpecialTokensWhereTheGrammarNamesThem) {
  const auto vocabulary = SpecialTokens();
  const auto grammar = Grammar::FromGbnf(
      "root ::= call (%until %special \"<c>\" [1]+ %special \"</c>\")* %without \"<c>\"\n"
      "call ::= (%special \"<c>\"){1,2} ([1]+ | \"<o>\" | \"</c>\") %special \"</c>\"",
      vocabulary);
  // U+E000 and U+E001 for the tokens <c> and </c>; the free texts as automata written out, one rule
  // for each beginning of the mark.
  const auto plain = Grammar::FromGbnf(
      "root ::= call (until0 [1]+ close)* rest0\n"
      "call ::= open{1,2} ([1]+ | \"<o>\" | \"</c>\") close\n"
      "open ::= \"<c>\" | \"\\uE000\"\n"
      "close ::= \"</c>\" | \"\\uE001\"\n"
      "until0 ::= \"\\uE000\" | \"<\" until1 | [^<\\uE000\\uE001] until0\n"
      "until1 ::= \"\\uE000\" | \"<\" until1 | \"c\" until2 | [^<c\\uE000\\uE001] until0\n"
      "until2 ::= \"\\uE000\" | \"<\" until1 | \">\" | [^<>\\uE000\\uE001] until0\n"
      "rest0 ::= \"\" | \"<\" rest1 | [^<\\uE000\\uE001] rest0\n"
      "rest1 ::= \"\" | \"<\" rest1 | \"c\" rest2 | [^<c\\uE000\\uE001] rest0\n"
      "rest2 ::= \"\" | \"<\" rest1 | [^<>\\uE000\\uE001] rest0\n",
      nullptr);
  const auto written = [&](int32_t id) -> std::string {
    if (id == kOpenToken) return "\xEE\x80\x80";
    return id == kCloseToken ? "\xEE\x80\x81" : vocabulary->bytes(id);
  };
  std::mt19937 random(11);
  int taken[3] = {};
  for (int walk = 0; walk < 400; ++walk) {
    State state = grammar->Start();
    State expected = plain->Start();
    std::string text;
    for (int step = 0; step < 20; ++step) {
      ExpectBruteForce(state, *vocabulary, text);
      EXPECT_EQ(state.MayEnd(), expected.MayEnd()) << text;
      const Mask mask = state.NextTokens();
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id + 1 < vocabulary->size(); ++id) {
        const std::string bytes = written(id);
        const bool follows = id != kOtherToken && expected.CountValid(bytes) == bytes.size();
        EXPECT_EQ(InMask(mask, id), follows) << text << " then " << bytes;
        if (follows) allowed.push_back(id);
      }
      if (allowed.empty()) break;
      // Special tokens are likelier, so that there are many of them.
      const int32_t id = random() % 3 == 0 ? allowed.front() : allowed[random() % allowed.size()];
      ASSERT_TRUE(state.AdvanceToken(id)) << text;
      ASSERT_TRUE(expected.Advance(written(id))) << text;
      text += written(id);
      if (id <= kOtherToken) ++taken[id];
    }
  }
  EXPECT_GT(taken[kOpenToken], 200);
  EXPECT_GT(taken[kCloseToken], 200);
}

TEST(GbnfElements, SpecialTokensAreForcedAndReadOnce) {
  const auto grammar = Grammar::FromGbnf(
      "root ::= %special \"<c>\" [a]* %until %special \"</c>\" \"1\"", SpecialTokens());
  State state = grammar->Start();
  EXPECT_EQ(state.ForcedBytes(9), "<c>");
  EXPECT_FALSE(state.AdvanceToken(kCloseToken));
  ASSERT_TRUE(state.AdvanceToken(kOpenToken));
  EXPECT_FALSE(state.AdvanceToken(kOpenToken));
  ASSERT_TRUE(state.Advance("a</"));  // the mark has begun, and the token begins it anew
  ASSERT_TRUE(state.AdvanceToken(kCloseToken));
  EXPECT_EQ(state.ForcedBytes(9), "1");
  EXPECT_FALSE(state.AdvanceToken(kCloseToken));
  ASSERT_TRUE(state.Advance("1"));
  EXPECT_TRUE(state.MustEnd());
}

TEST(GbnfElements, Refusals) {
  EXPECT_NE(ElementError("root ::= %nothing \"a\"").find("%nothing"), std::string::npos);
  EXPECT_NE(ElementError("root ::= %until a").find("in quotes"), std::string::npos);
  EXPECT_NE(ElementError("root ::= %until \"\"").find("0 bytes"), std::string::npos);
  EXPECT_NE(ElementError("root ::= %json 5").find("lacks the schema"), std::string::npos);
  EXPECT_NE(ElementError("root ::= %json {\"a\": \"}").find("ends within"), std::string::npos);
  EXPECT_NE(ElementError("root ::= %json {\"a\": \"\\").find("ends within"), std::string::npos);
  EXPECT_NE(ElementError("root ::= \"\"\n%json {}").find("name of a rule"), std::string::npos);
  EXPECT_NE(ElementError("root ::= %json {\"type\": \"strin\"}").find("strin"), std::string::npos);
}

}  // namespace
}  // namespace loopspec::grammar

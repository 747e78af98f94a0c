// Regular expressions: which texts they take, against a table.
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

#include "base/error.h"
#include "grammar/grammar.h"
#include "grammar/pattern.h"

namespace loopspec::grammar {
namespace {

bool Whole(const std::string& pattern, const std::string& text) {
  const auto grammar = Grammar::FromRegex(pattern, nullptr);
  State state = grammar->Start();
  return state.Advance(text) && state.MayEnd();
}

bool Found(const std::string& pattern, const std::string& text) {
  Regular regular;
  const Node node = ParsePattern(regular, pattern, Writing::kUtf8, Anchoring::kSearch);
  return regular.Matches(node, text);
}

bool AllOf(const std::string& text, const char* letters) {
  return text.find_first_not_of(letters) == std::string::npos;
}

std::string ErrorOf(const std::string& pattern) {
  try {
    Grammar::FromRegex(pattern, nullptr);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(GrammarPattern, WholeTexts) {
  struct Row {
    std::string pattern;
    std::vector<std::string> yes, no;
  };
  const Row rows[] = {
      {"abc", {"abc"}, {"", "ab", "abcd", "xabc"}},
      {"a|bc|", {"a", "bc", ""}, {"b", "ab"}},
      {"(a*)*b", {"b", "aaab"}, {"", "a", "ba"}},
      {"[a-c]{2,3}", {"ab", "ccc"}, {"a", "abca", "ad"}},
      {"x{3}", {"xxx"}, {"xx", "xxxx"}},
      {"x{2,}", {"xx", "xxxxxxx"}, {"x"}},
      {"x{,2}", {"x{,2}"}, {"xx"}},
      {"\\d+\\.\\d{2}", {"1.25", "10.00"}, {"1.2", ".25"}},
      {"[^\\s,]+", {"a-b", "\xC3\xA9"}, {"a b", "a,b", ""}},
      {"\\u00e9|\\u{1F600}", {"\xC3\xA9", "\xF0\x9F\x98\x80"}, {"e"}},
      {"\\ud83d\\ude00", {"\xF0\x9F\x98\x80"}, {"\xF0\x9F\x98\x81"}},
      {".",
       {"a", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"},
       {"\n", "ab", "\xC3", "\xED\xA0\x80"}},
      {"(?:ab)+?c", {"abc", "ababc"}, {"c"}},
      {"(?<year>\\d{4})-(?P<month>\\d\\d)", {"2026-11"}, {"2026-1"}},
      {"(?i)ab[c-d]", {"ABC", "abd"}, {"abe"}},
      {"^a$|^b", {"a", "b"}, {"ab"}},
      {"(?!ab)a.", {"ac"}, {"ab"}},
      {"(?=.*\\d)(?=.*[a-z])[a-z\\d]{3,4}", {"ab1", "1a22"}, {"abc", "123", "a1"}},
      {"[\\w.-]+@[\\w-]+", {"a.b@c-d"}, {"@", "a@"}},
      {"[]x]|y", {"y"}, {"]", "x"}},  // an empty class, as JavaScript has it, and x]
      {"a\\/b\\-\\\\", {"a/b-\\"}, {"a/b-"}},
      {"[+--]+", {"+,-"}, {"."}},
      {"[a\\-z]+", {"a-z"}, {"b"}},
      {"[\\d-x]+", {"1-x"}, {"y"}},
      // Half a pair of surrogates is no character.
      {"[\\ud800\\udbff-\\udc00\\udfffa]+", {"a", "aa"}, {"\xF0\x90\x80\x80", "\xEE\x80\x80"}},
      {"a|\\ud83d|\\ud83d\\u0041|\\ud83d\\u{41}", {"a"}, {"", "A", "\xEF\xBF\xBD"}},
      {"((?![b-d])[a-f]){2}", {"aa", "ef"}, {"ab", "da", "a"}},
      {"(?!a)(?![b-d])[a-f]{2,3}g|(?=b)[ab]+h",
       {"eag", "fabg", "bah", "bh"},
       {"aeg", "deg", "eg", "ah", "h"}},
  };
  for (const Row& row : rows) {
    for (const auto& text : row.yes) EXPECT_TRUE(Whole(row.pattern, text)) << row.pattern << text;
    for (const auto& text : row.no) EXPECT_FALSE(Whole(row.pattern, text)) << row.pattern << text;
  }
}

TEST(GrammarPattern, SearchWithAnchorsAnywhereAtTheEdges) {
  const std::string patterns[] = {
      "a",        "^a",       "a$",  "^a$",          "^a|b$",    "(^a|b)c", "a(b|c$)",
      "^",        "$",        "^$",  "(^|b)a",       "a($|b)",   "a(?!b)",  "a(?=b)",
      "^(?!.*c)", "^(a|b)+$", "a.c", "(a|^b)(c|a$)", "^(?!a|b)", "^(?!a$)"};
  std::vector<std::string> texts{""};
  for (size_t i = 0; i < texts.size() && texts[i].size() < 4; ++i) {
    for (const char c : {'a', 'b', 'c'}) texts.push_back(texts[i] + c);
  }
  for (const std::string& pattern : patterns) {
    const std::regex oracle(pattern);
    for (const std::string& text : texts) {
      EXPECT_EQ(Found(pattern, text), std::regex_search(text, oracle)) << pattern << " " << text;
    }
  }
}

// Lookahead that asks where the text starts, against what Python's `re` finds.
TEST(GrammarPattern, TheStartWithinLookahead) {
  struct Row {
    std::string pattern;
    bool (*finds)(const std::string& text);
  };
  const Row rows[] = {
      // At the start only where not all are a's, later anywhere.
      {"(?!^a+$)[ab]",
       [](const std::string& t) {
         return (t.find_first_of("ab") != std::string::npos && !(AllOf(t, "a") && !t.empty())) ||
                t.find_first_of("ab", 1) != std::string::npos;
       }},
      {"(?!^ab)a",
       [](const std::string& t) { return t.find('a', t.starts_with("ab")) < t.size(); }},
      {"(?=^a)..", [](const std::string& t) { return t.starts_with('a') && t.size() > 1; }},
      {"(?=^b|c)[bc]$", [](const std::string& t) { return t == "b" || t.ends_with('c'); }},
      {"(^(?!bb))(^[ab]+$)",
       [](const std::string& t) { return !t.empty() && AllOf(t, "ab") && !t.starts_with("bb"); }},
      {"(?!b)^a", [](const std::string& t) { return t.starts_with('a'); }},
      {"(?!a)^(?!b)",
       [](const std::string& t) { return !t.starts_with('a') && !t.starts_with('b'); }},
      {"^(?!^a)b|(?!^b)ca",
       [](const std::string& t) {
         return t.starts_with('b') || t.find("ca") != std::string::npos;
       }},
  };
  std::vector<std::string> texts{""};
  for (size_t i = 0; i < texts.size() && texts[i].size() < 4; ++i) {
    for (const char c : {'a', 'b', 'c'}) texts.push_back(texts[i] + c);
  }
  for (const Row& row : rows) {
    for (const std::string& text : texts) {
      EXPECT_EQ(Found(row.pattern, text), row.finds(text)) << row.pattern << " " << text;
    }
  }
}

TEST(GrammarPattern, LookingBehindAndWordBoundaries) {
  struct Row {
    std::string pattern;
    std::vector<std::string> yes, no;
  };
  const Row rows[] = {
      {"(?<!\\\\)\\$\\{", {"${", "a${b", "\\${${"}, {"\\${", "$", "a\\${"}},
      {"a(?<=ba)c", {"bac", "xbacx"}, {"ac", "cac"}},
      {"^(?<!a)b", {"b", "bc"}, {"ab", "c"}},
      {"(?<=^a)b|(?<!a)c$", {"ab", "c", "bc", "abc"}, {"bab", "ac", "cb"}},
      {"\\bcat\\b", {"cat", "a cat", "cat.", "-cat-"}, {"cats", "concat", "cat_"}},
      {"\\Bat\\b", {"cat", "a flat"}, {"at", "ate", "cat9"}},
  };
  for (const Row& row : rows) {
    for (const auto& text : row.yes) EXPECT_TRUE(Found(row.pattern, text)) << row.pattern << text;
    for (const auto& text : row.no) EXPECT_FALSE(Found(row.pattern, text)) << row.pattern << text;
  }
}

TEST(GrammarPattern, JsonStringsTakeEveryEscape) {
  Regular regular;
  const Node node = ParsePattern(regular, "^\xC3\xA9\n\"\xF0\x9F\x98\x80$", Writing::kJsonString,
                                 Anchoring::kSearch);
  EXPECT_TRUE(regular.Matches(node, "\xC3\xA9\\n\\\"\xF0\x9F\x98\x80"));
  EXPECT_TRUE(regular.Matches(node, "\\u00e9\\u000a\\u0022\\uD83d\\uDe00"));
  EXPECT_FALSE(regular.Matches(node, "\\u00e9\n\\\"\\ud83d\\ude00"));
  EXPECT_FALSE(regular.Matches(node, "\\u00e9\\n\\\"\\ud83d"));
  const Node any = ParsePattern(regular, "^.$", Writing::kJsonString, Anchoring::kSearch);
  EXPECT_FALSE(regular.Matches(any, "\\ud83d"));
  EXPECT_FALSE(regular.Matches(any, "\\ude00"));
  EXPECT_FALSE(regular.Matches(any, "\""));
  EXPECT_TRUE(regular.Matches(any, "\\u0000"));
  EXPECT_FALSE(regular.Matches(any, "\\u000A"));
  EXPECT_TRUE(regular.Matches(any, "\\/"));
}

TEST(GrammarPattern, WhatCannotBeEnforcedIsNamed) {
  EXPECT_NE(ErrorOf("(a)\\1").find("backreference"), std::string::npos);
  EXPECT_NE(ErrorOf("^a\\b.*\\bz$").find("word boundary"), std::string::npos);
  EXPECT_NE(ErrorOf("(a\\b)+b").find("repeated group"), std::string::npos);
  EXPECT_NE(ErrorOf("c((?<=a)b|d)").find("lookbehind"), std::string::npos);
  for (const char* property : {"\\p{Script=Greek}", "\\p{Alphabetic}", "\\p{letter}", "\\P{IsL}",
                               "[\\p{}]", "\\pL", "\\p{L", "\\p", "(?i)\\p{Lu}"}) {
    EXPECT_NE(ErrorOf(property).find("Unicode property"), std::string::npos) << property;
  }
  EXPECT_NE(ErrorOf("(a(?!b))+c").find("repeated group"), std::string::npos);
  EXPECT_NE(ErrorOf("a^b").find("^"), std::string::npos);
  EXPECT_NE(ErrorOf("(").find("without an end"), std::string::npos);
  EXPECT_NE(ErrorOf("[a").find("without an end"), std::string::npos);
  EXPECT_NE(ErrorOf("a)").find("parenthesis"), std::string::npos);
  EXPECT_NE(ErrorOf("*a").find("nothing to repeat"), std::string::npos);
  EXPECT_NE(ErrorOf("a{3,2}").find("upper end"), std::string::npos);
  EXPECT_NE(ErrorOf("[]").find("matches no text"), std::string::npos);
  EXPECT_NE(ErrorOf("(?=a)b").find("matches no text"), std::string::npos);
  EXPECT_NE(ErrorOf(std::string(100'000, 'a')).find("the most allowed"), std::string::npos);
  // Few states, each with thousands of ways to place the boundaries.
  EXPECT_NE(ErrorOf(R"(;+.+\bt"maxILLM;+.+\bt"maxItems?":2".+\bt\bt"rtems?":2".+\bt\bt"roo)")
                .find("derivatives, which is the most allowed"),
            std::string::npos);
  EXPECT_NE(ErrorOf(std::string(300, '(') + std::string(300, ')')).find("nested"),
            std::string::npos);
  EXPECT_NE(ErrorOf("a{1,99999999}").find("1000000"), std::string::npos);
}

TEST(GrammarPattern, NoStateIsADeadEnd) {
  // Three a's or five, in pairs: nothing, so that the other choice is the only one from the start.
  const auto grammar = Grammar::FromRegex("(?=(aa)*$)(a{3}|a{5})|ab", nullptr);
  State state = grammar->Start();
  EXPECT_TRUE(state.Advance("a"));
  EXPECT_FALSE(state.Advance("a"));
  EXPECT_EQ(state.ForcedBytes(10), "b");
}

// What an assertion leaves of a choice may be no text at all.
TEST(GrammarPattern, KnowsWhereNothingButTheEndCanFollow) {
  for (const char* pattern : {"|\\[\\b-", "a?|-\\b-"}) {
    const auto grammar = Grammar::FromRegex(pattern, nullptr);
    std::string text;
    State state = grammar->Start();
    for (int steps = 0; steps < 3; ++steps) {
      std::string allowed;
      for (int byte = 0; byte < 128; ++byte) {
        const char c = static_cast<char>(byte);
        if (state.CountValid({&c, 1}) == 1) allowed += c;
      }
      EXPECT_EQ(state.MustEnd(), allowed.empty()) << pattern << " after " << text;
      if (allowed.empty()) break;
      text += allowed[0];
      ASSERT_TRUE(state.Advance(allowed.substr(0, 1)));
    }
    EXPECT_TRUE(state.MustEnd()) << pattern << " after " << text;
  }
}

TEST(GrammarPattern, HostilePatternsStayBounded) {
  // Linear in the text however the pattern is nested.
  const auto grammar = Grammar::FromRegex("((a|aa|a*)*)*b", nullptr);
  State state = grammar->Start();
  EXPECT_TRUE(state.Advance(std::string(10'000, 'a')));
  EXPECT_TRUE(state.Advance("b"));
  EXPECT_TRUE(state.MustEnd());
  // A million characters counted, without a million states.
  const auto counted = Grammar::FromRegex("[a-z]{1000000}x", nullptr);
  EXPECT_TRUE(counted->Start().Advance(std::string(1000, 'q')));
  // Exponentially many states where all are made: only those that the text reaches are.
  const auto last = Grammar::FromRegex("[ab]*a[ab]{60}", nullptr);
  State text = last->Start();
  for (int i = 0; i < 300; ++i) EXPECT_TRUE(text.Advance(i % 7 < 3 ? "a" : "b"));
}

}  // namespace
}  // namespace loopspec::grammar

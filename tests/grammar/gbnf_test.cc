// GBNF: which texts a grammar takes, and what is refused.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "grammar/grammar.h"

namespace loopspec::grammar {
namespace {

bool Takes(const std::string& text, const std::string& input) {
  const auto grammar = Grammar::FromGbnf(text, nullptr);
  State state = grammar->Start();
  return state.Advance(input) && state.MayEnd();
}

std::string GbnfError(const std::string& text) {
  try {
    Grammar::FromGbnf(text, nullptr);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(GrammarGbnf, Arithmetic) {
  const std::string text =
      "# sums\n"
      "root  ::= (expr \"=\" ws term \"\\n\")+\n"
      "expr  ::= term ([-+*/] term)*\n"
      "term  ::= ident | num | \"(\" ws expr \")\" ws\n"
      "ident ::= [a-z] [a-z0-9_]* ws\n"
      "num   ::= [0-9]+ ws\n"
      "ws    ::= [ \\t\\n]*\n";
  EXPECT_TRUE(Takes(text, "a +(b*3) = 4\n"));
  EXPECT_TRUE(Takes(text, "((((1))))=x\ny=2\n"));
  EXPECT_FALSE(Takes(text, "a + = 4\n"));
  EXPECT_FALSE(Takes(text, "(a = 4\n"));
}

TEST(GrammarGbnf, FormsOfTheLanguage) {
  EXPECT_TRUE(Takes("root ::= \"a\" | \"b\" |\n  \"c\"", "c"));
  EXPECT_TRUE(Takes("root ::= \"a\"\n  | \"b\"\n", "b"));
  EXPECT_TRUE(Takes("root ::= (\n \"a\"\n \"b\" )\n", "ab"));
  EXPECT_TRUE(Takes("root ::= x{2,3} \"!\"\nx ::= \"<\" x? \">\"", "<><<>>!"));
  EXPECT_FALSE(Takes("root ::= x{2,3} \"!\"\nx ::= \"<\" x? \">\"", "<>!"));
  EXPECT_TRUE(
      Takes("root ::= [^\"\\\\] \"\\x41\\u00e9\\U0001F600\"", "zA\xC3\xA9\xF0\x9F\x98\x80"));
  EXPECT_TRUE(Takes("root ::= .", "\xE2\x82\xAC"));
  EXPECT_TRUE(Takes("root ::= \"\"", ""));
  EXPECT_TRUE(Takes("root ::= [a-]{2}", "a-"));
  EXPECT_TRUE(Takes("root ::= a-b a_c\na-b ::= \"1\"\na_c ::= \"2\"", "12"));
  // Right recursion, and a rule that is nested in itself.
  EXPECT_TRUE(Takes("root ::= \"a\" root | \"\"", std::string(5000, 'a')));
  const std::string deep = std::string(2000, '(') + std::string(2000, ')');
  EXPECT_TRUE(Takes("root ::= \"(\" root? \")\"", deep));
  // Ambiguous in many ways.
  EXPECT_TRUE(Takes("root ::= s\ns ::= \"a\" s s | \"a\" s | \"a\"", std::string(200, 'a')));
}

TEST(GrammarGbnf, Refusals) {
  EXPECT_NE(GbnfError("x ::= \"a\"").find("root"), std::string::npos);
  EXPECT_NE(GbnfError("root ::= y").find("rule y"), std::string::npos);
  EXPECT_NE(GbnfError("root ::= root \"a\" | \"b\"").find("left recursion"), std::string::npos);
  EXPECT_NE(GbnfError("root ::= e root \"a\" | \"b\"\ne ::= \"\" | \"c\"").find("left recursion"),
            std::string::npos);
  EXPECT_NE(GbnfError("root ::= \"a").find("line 1"), std::string::npos);
  EXPECT_NE(GbnfError("root ::= \"a\"\nroot ::= \"b\"").find("twice"), std::string::npos);
  EXPECT_NE(GbnfError("root = \"a\"").find("::="), std::string::npos);
  EXPECT_NE(GbnfError("root ::= (\"a\"").find("without an end"), std::string::npos);
  EXPECT_NE(GbnfError("root ::= \"a\" root").find("no text"), std::string::npos);
  EXPECT_NE(GbnfError("root ::= \"a\" )").find("end of a rule"), std::string::npos);
  EXPECT_NE(GbnfError(std::string("root ::= ") + std::string(300, '(')).find("nested"),
            std::string::npos);
}

}  // namespace
}  // namespace loopspec::grammar

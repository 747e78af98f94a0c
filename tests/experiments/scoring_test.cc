#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "experiments/scoring/lm_eval.h"
#include "experiments/scoring/math_answer.h"
#include "experiments/scoring/math_expression.h"
#include "experiments/scoring/programs.h"
#include "experiments/scoring/rational.h"
#include "experiments/scoring/regex.h"
#include "experiments/scoring/strings.h"

namespace loopspec::measure {
namespace {

TEST(Regex, FindsAsPythonDoes) {
  const auto matches = Regex("a*").FindAll("baac");
  ASSERT_EQ(matches.size(), 4u);  // empty, "aa", empty, empty
  EXPECT_EQ(matches[1].groups[0], "aa");
  EXPECT_EQ(Regex("(a)|(b)").FindAll("b")[0].groups[1], "");
  EXPECT_EQ(Regex("x.y").Search("x\ny"), std::nullopt);
  EXPECT_TRUE(Regex("x.y").Search("x\ry"));
  EXPECT_EQ(Regex("b+").Remove("abbcb"), "ac");
  EXPECT_FALSE(Regex("é").Search("\xff\xfe"));
}

TEST(Strings, AreAsPythons) {
  EXPECT_EQ(Strip("\xC2\xA0 x\xE2\x80\x83\n"), "x");
  EXPECT_EQ(ReplaceAll("aabb", "ab", ""), "ab");
  EXPECT_EQ(Split("a,b,", ",").size(), 3u);
}

TEST(Gsm8k, Filters) {
  EXPECT_EQ(Gsm8kStrictMatch("So 3. The answer is 1,234. The answer is 5."), "1,234.");
  EXPECT_EQ(Gsm8kStrictMatch("the answer is 5."), "[invalid]");
  EXPECT_EQ(Gsm8kFlexibleExtract("12 eggs and $13.50 in all"), "$13.50");
  EXPECT_EQ(Gsm8kFlexibleExtract("none"), "[invalid]");
  EXPECT_TRUE(Gsm8kExactMatch("$1,234.", "1234"));
  EXPECT_FALSE(Gsm8kExactMatch("1234.0", "1234"));
  EXPECT_EQ(Gsm8kReference("2 + 3 = 5\n#### 5 "), "5");
}

TEST(Bbh, Filter) {
  EXPECT_EQ(BbhGetAnswer("We think. So the answer is (A)."), "(A)");
  EXPECT_EQ(BbhGetAnswer("So the answer is True"), "Tru");
  EXPECT_EQ(BbhGetAnswer("The answer is True."), "[invalid]");
  EXPECT_EQ(BbhGetAnswer("the answer is a b.\nthe answer is c."), "a b");
}

TEST(Minerva, Filters) {
  EXPECT_EQ(
      MinervaUnnormalizedAnswer("Final Answer: The final answer is $5$. I hope it is correct."),
      "$5$");
  EXPECT_EQ(MinervaUnnormalizedAnswer("It is 5."), "[invalidanswer]");
  EXPECT_EQ(MinervaNormalize("x = 10,000 \\text{ dollars}"), "10000");
  EXPECT_EQ(MinervaNormalize("\\frac12"), "\\frac{1}{2}");
  EXPECT_EQ(MinervaNormalize("$\\sqrt2$ cm"), "\\sqrt{2}");
  EXPECT_EQ(LastBoxed("so \\boxed{1} and \\boxed{\\frac{1}{2}}."), "\\frac{1}{2}");
  EXPECT_EQ(LastBoxed("\\boxed{1"), std::nullopt);
  EXPECT_EQ(LastBoxed("nothing"), std::nullopt);
}

TEST(Minerva, ComparesAsSympyReads) {
  EXPECT_TRUE(MinervaEquivalent("2\\sqrt{2}", "\\sqrt{8}"));
  EXPECT_TRUE(MinervaEquivalent("1.25", "\\frac{5}{4}"));
  EXPECT_TRUE(MinervaEquivalent("1,-2", "1,-3"));  // read up to the comma
  EXPECT_TRUE(MinervaEquivalent("east", "seat"));  // products of letters
  EXPECT_FALSE(MinervaEquivalent("0.333333", "\\frac{1}{3}"));
  EXPECT_FALSE(MinervaEquivalent("(2,4)", "(2,4)"));  // not understood
  EXPECT_FALSE(MinervaEquivalent("x<3", "x<3"));
  EXPECT_FALSE(MinervaEquivalent("", ""));
}

TEST(Rational, IsExactOrSaysSo) {
  EXPECT_EQ(*Add({1, 3}, {1, 6}), (Rational{1, 2}));
  EXPECT_EQ(*Divide({1, 2}, {-3, 4}), (Rational{-2, 3}));
  EXPECT_FALSE(Divide({1, 2}, {0, 1}));
  EXPECT_EQ(*Power({4, 9}, {-1, 2}), (Rational{3, 2}));
  EXPECT_FALSE(Power({2, 1}, {1, 2}));
  EXPECT_FALSE(Power({10, 1}, {100, 1}));
  EXPECT_EQ(*Factorial({5, 1}), (Rational{120, 1}));
  EXPECT_FALSE(Factorial({40, 1}));
}

struct Pair {
  const char* gold;
  const char* answer;
};

TEST(MathEquivalent, SameValues) {
  for (const Pair& p : std::vector<Pair>{
           {"42", "42.0"},
           {"42", "$42$"},
           {"42", "x = 42"},
           {"x=5", "5"},
           {"1234", "1,234"},
           {"10,\\!080", "10080"},
           {"\\frac{1}{2}", "0.5"},
           {"\\frac12", "\\dfrac{2}{4}"},
           {"\\frac{1}{3}", "0.333333"},
           {"1\\frac{4}{5}", "\\frac{9}{5}"},
           {"137 \\frac{1}{2}", "137.5"},
           {"50\\%", "50"},
           {"\\frac{1}{2}", "50\\%"},
           {"3\\sqrt{13}", "\\sqrt{117}"},
           {"\\sqrt[3]{8}", "2"},
           {"90^\\circ", "90"},
           {"5.4 \\text{ cents}", "5.4"},
           {"864 \\mbox{ inches}^2", "864"},
           {"\\$18.90", "18.9"},
           {"(3,4]", "(3, 4]"},
           {"(0,9) \\cup (9,36)", "(9,36) \\cup (0,9)"},
           {"x \\in [-2,7]", "[-2,7]"},
           {"-2 \\le x \\le 7", "[-2,7]"},
           {"1,-2", "-2,1"},
           {"1,-2", "\\{-2, 1\\}"},
           {"1 \\pm \\sqrt{19}", "1-\\sqrt{19}, 1+\\sqrt{19}"},
           {"\\{1\\pm\\sqrt{5},-2\\}", "-2, 1+\\sqrt{5}, 1-\\sqrt{5}"},
           {"\\left( 3, \\frac{\\pi}{2} \\right)", "(3, \\pi/2)"},
           {"6 - 5i", "-5i+6"},
           {"(a+5)(b+2)", "ab+2a+5b+10"},
           {"x^3+3x-6", "3x - 6 + x^3"},
           {"5x - 7y + 11z + 4 = 0", "10x-14y+22z+8=0"},
           {"y = 2x + 3", "2x - y + 3 = 0"},
           {"x < 3", "3 > x"},
           {"\\begin{pmatrix} -1/3 \\\\ 2/3 \\end{pmatrix}",
            "\\begin{bmatrix} -\\frac{1}{3} \\\\ \\frac{2}{3} \\end{bmatrix}"},
           {"\\text{Evelyn}", "Evelyn"},
           {"\\text{(C)}", "C"},
           {"\\cot x", "\\frac{\\cos x}{\\sin x}"},
           {"\\log_2 8", "3"},
           {"\\binom{5}{2}", "10"},
           {"5!", "120"},
           {"|{-3}|", "3"},
           {"2^{10}", "1024"},
           {"52_8", "52"},
           {"(-\\infty, 2)", "x < 2"},
       }) {
    // Inequalities stand for intervals only on the gold side.
    const bool reversed = std::string(p.answer) == "x < 2";
    EXPECT_TRUE(reversed ? MathEquivalent(p.answer, p.gold) : MathEquivalent(p.gold, p.answer))
        << p.gold << " and " << p.answer;
  }
}

TEST(MathEquivalent, DifferentValues) {
  for (const Pair& p : std::vector<Pair>{
           {"42", "43"},
           {"42", ""},
           {"", ""},
           {"\\frac{1}{3}", "0.33"},
           {"\\frac{1}{2}", "\\frac{2}{1}"},
           {"(3,4]", "[3,4]"},
           {"(3,4]", "(3,5]"},
           {"(1,2)", "(2,1)"},
           {"1,-2", "1"},
           {"1,2", "1,2,2"},
           {"x=5", "y=5"},
           {"x < 3", "x > 3"},
           {"x < 3", "x \\le 3"},
           {"\\text{east}", "\\text{west}"},
           {"\\sqrt{2}", "1.41"},
           {"x+1", "x+2"},
           {"x+1", "y+1"},
           {"6-5i", "6+5i"},
           {"\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix} 2 \\\\ 1 \\end{pmatrix}"},
           {"\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix} 1 & 2 \\end{pmatrix}"},
           {"52_8", "52_9"},
           {"100000000000000000000000000001", "100000000000000000000000000002"},
           {"\\frac{1}{0}", "1"},
       }) {
    EXPECT_FALSE(MathEquivalent(p.gold, p.answer)) << p.gold << " and " << p.answer;
  }
}

TEST(MathEquivalent, SurvivesHostileText) {
  const std::string deep(100000, '(');
  EXPECT_FALSE(MathEquivalent("1", deep));
  std::string fractions;
  for (int i = 0; i < 5000; ++i) fractions += "\\frac{1}{";
  EXPECT_FALSE(MathEquivalent("1", fractions));
  EXPECT_FALSE(MathEquivalent("1", "\xff\xfe\\"));
  EXPECT_FALSE(MathEquivalent("1", "\\"));
  EXPECT_FALSE(MathEquivalent("1", "9^{9^{9^{9}}}"));
  EXPECT_FALSE(MathEquivalent("1", "170141183460469231731687303715884105728!"));
  EXPECT_FALSE(MathEquivalent("1", std::string(50000, '-')));
  EXPECT_FALSE(MathEquivalent("0", std::string(20000, '^')));
  std::string ones;
  for (int i = 0; i < 50000; ++i) ones += "1 ";
  EXPECT_EQ(ExtractMathAnswer(ones + "2").value_or("nothing"), "2");
}

TEST(ExtractMathAnswer, PrefersTheStatedAnswer) {
  for (const Pair& p : std::vector<Pair>{
           {"Final Answer: The final answer is $[2,5)$. I hope it is correct.", "[2,5)"},
           {"So $\\boxed{7}$.\nThe final answer is $5$. I hope it is correct.", "5"},
           {"We get $x = \\boxed{\\frac{1}{2}}$ after 3 steps.", "\\frac{1}{2}"},
           {"\\boxed{1} and \\boxed{2}", "1,2"},
           {"Answer: 3/4", "3/4"},
           {"The answer is 3 + 4 = 7.", "7"},
           {"There are 12 cases, so 1,234 in total.", "1234"},
           {"It is 50% of 8", "8"},
           {"$2$ and $3$", "2,3"},
           {"It costs $18.90.", "18.90"},
       }) {
    EXPECT_EQ(ExtractMathAnswer(p.gold).value_or("nothing"), p.answer) << p.gold;
  }
  EXPECT_EQ(ExtractMathAnswer("no idea"), std::nullopt);
  EXPECT_EQ(ExtractMathAnswer(""), std::nullopt);
}

TEST(ExtractCode, TakesTheBlock) {
  EXPECT_EQ(ExtractCode("def f():\n    return 1"), "def f():\n    return 1");
  EXPECT_EQ(ExtractCode("def f():\n    return 1\n```\nIt works."), "def f():\n    return 1\n");
  EXPECT_EQ(ExtractCode("Here it is:\n```python\nx = 1\n```\nand\n```\ny\n```"), "x = 1\n");
  EXPECT_EQ(ExtractCode("```\nx = 1\n```"), "x = 1\n");
  EXPECT_EQ(ExtractCode("```python"), "");
}

}  // namespace
}  // namespace loopspec::measure

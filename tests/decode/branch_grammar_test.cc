// The grammar along branches: states by prefix, masks, forced tokens, dead ends.
#include "decode/branch_grammar.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "decode/branch_tree.h"
#include "sampling/filters.h"

namespace loopspec {
namespace {

// The letters a to z are 0 to 25, 26 is "ab", 27 ends the text.
grammar::State Start(const std::string& regex) {
  std::vector<grammar::Vocabulary::Token> tokens;
  for (char c = 'a'; c <= 'z'; ++c) tokens.push_back({std::string(1, c)});
  tokens.push_back({"ab"});
  tokens.push_back({"", true});
  return grammar::Grammar::FromRegex(regex, std::make_shared<const grammar::Vocabulary>(
                                                std::move(tokens), std::vector<int32_t>{27}))
      ->Start();
}

std::vector<int32_t> Allowed(BranchGrammar& grammar, int32_t branch) {
  std::vector<int32_t> ids;
  for (int32_t v = 0; v < 28; ++v) {
    const bool masked = Allows(grammar.MaskOf(branch)->Words().data(), v);
    EXPECT_EQ(masked, grammar.Allows(branch, v)) << v;
    if (masked) ids.push_back(v);
  }
  return ids;
}

using Ids = std::vector<int32_t>;

TEST(BranchGrammar, WithoutOneEverythingIsAllowed) {
  BranchGrammar grammar(std::nullopt, 4, nullptr);
  grammar.Spawn(0, kNoBranch, 5);
  EXPECT_EQ(grammar.MaskOf(0), nullptr);
  EXPECT_TRUE(grammar.Allows(0, 1));
  EXPECT_EQ(grammar.Forced(0), -1);
  EXPECT_EQ(grammar.Stuck(0), nullptr);
  grammar.Commit(1);
}

TEST(BranchGrammar, EachBranchHasTheStateOfItsPrefix) {
  BranchGrammar grammar(Start("ab?c|xy"), 4, nullptr);
  grammar.Spawn(0, kNoBranch, 5);  // the prompt's last token is no part of the text
  EXPECT_EQ(Allowed(grammar, 0), (Ids{0, 23, 26}));
  grammar.Spawn(1, 0, 0);
  grammar.Spawn(2, 0, 23);
  grammar.Spawn(3, 0, 26);
  EXPECT_EQ(Allowed(grammar, 1), (Ids{1, 2}));
  EXPECT_EQ(Allowed(grammar, 2), Ids{24});
  EXPECT_EQ(Allowed(grammar, 3), Ids{2});
  // Branch 1 becomes the root, and another takes a place that is free again.
  grammar.Commit(0);
  grammar.Spawn(2, 1, 2);
  EXPECT_EQ(Allowed(grammar, 2), Ids{27});  // nothing but the end
  // A fallback, or what resumes, begins on the decided text.
  grammar.Commit(1);
  grammar.Spawn(0, kNoBranch, 1);
  EXPECT_EQ(Allowed(grammar, 0), Ids{2});
  EXPECT_EQ(grammar.Stuck(0), nullptr);
}

TEST(BranchGrammar, ForcedTextIsCutIntoTokensOnce) {
  int cut = 0;
  const BranchGrammar::Encode encode = [&](std::string_view text) {
    ++cut;
    Ids ids;
    for (const char c : text) ids.push_back(c - 'a');
    return ids;
  };
  BranchGrammar grammar(Start("(no|yes)or"), 8, encode);
  grammar.Spawn(0, kNoBranch, 5);
  EXPECT_EQ(grammar.Forced(0), -1);
  grammar.Spawn(1, 0, 'y' - 'a');
  for (const auto& [branch, next] : {std::pair{1, 'e'}, {2, 's'}, {3, 'o'}, {4, 'r'}}) {
    EXPECT_EQ(grammar.Forced(branch), next - 'a');
    grammar.Spawn(branch + 1, branch, next - 'a');
  }
  EXPECT_EQ(cut, 1);
  EXPECT_EQ(grammar.Forced(5), -1);  // the end is no text
  // What left the run is looked at anew.
  grammar.Spawn(1, 0, 'n' - 'a');
  EXPECT_EQ(grammar.Forced(1), 'o' - 'a');
  EXPECT_EQ(cut, 2);
}

// A vocabulary that cannot write what the grammar wants.
TEST(BranchGrammar, SaysWhereNothingCanFollow) {
  BranchGrammar grammar(Start("a1"), 4, nullptr);
  grammar.Spawn(0, kNoBranch, 5);
  EXPECT_EQ(Allowed(grammar, 0), Ids{0});
  EXPECT_EQ(grammar.Stuck(0), nullptr);
  grammar.Spawn(1, 0, 0);
  EXPECT_EQ(Allowed(grammar, 1), Ids{});
  ASSERT_NE(grammar.Stuck(1), nullptr);
  EXPECT_NE(grammar.Stuck(1)->find("no token"), std::string::npos);
}

}  // namespace
}  // namespace loopspec

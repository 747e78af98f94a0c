// Which branches of a request advance. Every choice gives the same text, so whether it is a good
// one is asked here.
#include "decode/branch_choice.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace loopspec {
namespace {

constexpr int kDepth = 8;      // R
constexpr int kBranches = 16;  // of a tree

// A step costs a fixed part and a fifth of it for every row.
StepCost FewRowsPay() {
  StepCost cost;
  for (size_t i = 0; i < cost.recurrence.size(); ++i)
    cost.recurrence[i] = 1.0 + 0.2 * StepCost::kRows[i];
  return cost;
}

ResolvedRequest Request() {
  ResolvedRequest request;
  request.depths = {2, 4};
  request.prior = {{0.8, 0.15}, 0.3};
  return request;
}

// The gate opens often and for little: where there is a second draft, the first still holds.
ResolvedRequest FirstDraftsHold() {
  ResolvedRequest request = Request();
  request.prior = {{0.8, 0.02}, 0.5};
  return request;
}

class BranchChoiceTest : public testing::Test {
 protected:
  void Use(const ResolvedRequest& request, const StepCost& cost = {}) {
    cost_ = cost;
    choice_ = std::make_unique<BranchChoice>(request, kDepth, kBranches, cost_);
  }
  int32_t Root(int depth) {
    const int32_t root = tree_.Add(kNoBranch, 0, 100);
    tree_[root].depth = depth;
    return root;
  }
  // A child on its parent's draft from proposal `index`.
  int32_t Child(int32_t parent, int index, int depth) {
    const int32_t child = tree_.Add(parent, index, tree_[parent].position + 1);
    tree_[child].depth = depth;
    Branch& branch = tree_[parent];
    branch.proposals[branch.proposal_count++] = {index, index, child};
    return child;
  }
  std::vector<bool> Advancing() {
    choice_->UpdateReach(tree_);
    choice_->ChooseAlone(tree_);
    std::vector<bool> advancing;
    for (const int32_t id : tree_.active()) advancing.push_back(tree_[id].advancing);
    return advancing;
  }
  int Rows() {
    const std::vector<bool> advancing = Advancing();
    return static_cast<int>(std::count(advancing.begin(), advancing.end(), true));
  }
  // The root and three generations of first drafts behind it.
  void Chain() {
    int32_t branch = Root(7);
    for (const int depth : {5, 3, 1}) branch = Child(branch, 0, depth);
  }
  void Verdicts(int count, int accepted) {
    Branch verified;
    verified.proposal_count = 1;
    for (int i = 0; i < count; ++i) choice_->ObserveVerdict(verified, accepted);
  }

  KvLedger ledger_{1, kBranches};
  BranchTree tree_{ledger_, kBranches};
  StepCost cost_;
  std::unique_ptr<BranchChoice> choice_;
};

TEST_F(BranchChoiceTest, ReachMultipliesDownTheTree) {
  Use(Request());
  const int32_t root = Root(5), first = Child(root, 0, 3), second = Child(root, 1, 1),
                grandchild = Child(first, 0, 1);
  choice_->UpdateReach(tree_);
  EXPECT_EQ(tree_[root].reach, 1.0);
  EXPECT_EQ(tree_[first].reach, choice_->DraftRate(tree_[root], 0));
  EXPECT_EQ(tree_[second].reach, choice_->DraftRate(tree_[root], 1));
  EXPECT_EQ(tree_[grandchild].reach, tree_[first].reach * choice_->DraftRate(tree_[first], 0));
  EXPECT_LT(tree_[first].reach + tree_[second].reach, 1.0);
}

TEST_F(BranchChoiceTest, AllAdvanceWhereRowsAreFree) {
  Use(Request());
  Chain();
  EXPECT_EQ(Rows(), 4);
}

TEST_F(BranchChoiceTest, LearnsThatDraftsDoNotHold) {
  Use(Request(), FewRowsPay());
  Chain();
  EXPECT_EQ(Rows(), 4);
  EXPECT_NEAR(choice_->Share(0), 0.8, 1e-9);
  Verdicts(100, -1);
  EXPECT_LT(choice_->Share(0), 0.15);
  EXPECT_EQ(Rows(), 1);  // the root, which alone is sure to be needed
  Verdicts(400, 0);
  EXPECT_EQ(Rows(), 4);
}

TEST_F(BranchChoiceTest, LearnsNothingWhereItMayNotOrCannot) {
  ResolvedRequest request = Request();
  request.laboratory.adapt_rates = false;
  Use(request, FewRowsPay());
  Verdicts(100, -1);
  EXPECT_NEAR(choice_->Share(0), 0.8, 1e-9);
  // A branch that passed a depth without being read out says nothing about drafts.
  Use(Request(), FewRowsPay());
  Branch undrafted;
  undrafted.undrafted = true;
  for (int i = 0; i < 100; ++i) choice_->ObserveVerdict(undrafted, -1);
  EXPECT_NEAR(choice_->Share(0), 0.8, 1e-9);
}

TEST_F(BranchChoiceTest, LearnsWhichGuessesHold) {
  Use(Request());
  const double before = choice_->GuessRate(2), other = choice_->GuessRate(5);
  for (int i = 0; i < 50; ++i) choice_->ObserveGuess(2, false);
  EXPECT_LT(choice_->GuessRate(2), before / 4);
  EXPECT_EQ(choice_->GuessRate(5), other);
}

// Older is not better: the second draft's child stands before the first draft's grandchild in the
// tree, and is far less likely to be needed.
TEST_F(BranchChoiceTest, RowsGoToTheLikeliest) {
  ResolvedRequest request = FirstDraftsHold();
  request.max_rows = 3;
  Use(request);
  const int32_t root = Root(7), first = Child(root, 0, 5);
  Child(root, 1, 3);
  Child(first, 0, 3);
  EXPECT_EQ(Advancing(), (std::vector<bool>{true, true, false, true}));
}

// One that would overtake its parent stays where it is.
TEST_F(BranchChoiceTest, NoBranchPassesItsParent) {
  Use(Request());
  const int32_t root = Root(5), child = Child(root, 0, 5);
  Child(child, 0, 2);
  choice_->UpdateReach(tree_);
  const char advance[] = {0, 1, 1};
  choice_->Mark(tree_, advance);
  EXPECT_FALSE(tree_[child].advancing);
  EXPECT_TRUE(tree_[tree_.active()[2]].advancing);
}

// ---- The last readout waits for a draft's, where d does not divide R and C is dear ----

ResolvedRequest DraftsAtThree() {
  ResolvedRequest request;
  request.depths = {3};
  request.prior = {{0.8}, 0};
  return request;
}
StepCost ReadoutsCost(double readout) {
  StepCost cost;
  cost.readout = readout;
  return cost;
}

// The root is two recurrences from R, the next draft three: one pass over C serves both.
TEST_F(BranchChoiceTest, LastReadoutsWaitForDrafts) {
  Use(DraftsAtThree(), ReadoutsCost(2.4));
  const int32_t root = Root(6), child = Child(root, 0, 3), last = Child(child, 0, 0);
  EXPECT_EQ(Advancing(), (std::vector<bool>{false, true, true}));
  EXPECT_EQ(choice_->root_waits(), 1);
  ++tree_[child].depth;
  ++tree_[last].depth;
  EXPECT_EQ(Advancing(), (std::vector<bool>{true, true, true}));
  EXPECT_EQ(choice_->root_waits(), 0);
}

// A pass is saved if the draft is on the committed path, 0.8 x 0.8; a recurrence is lost where the
// root's draft does not hold, 0.2.
TEST_F(BranchChoiceTest, LastReadoutsWaitWhereThatIsCheaper) {
  for (const double readout : {0.30, 0.33}) {
    Use(DraftsAtThree(), ReadoutsCost(readout));
    tree_.Clear();
    Child(Child(Root(6), 0, 3), 0, 0);
    EXPECT_EQ(Advancing()[0], readout < 0.2 / 0.64) << readout;
  }
}

TEST_F(BranchChoiceTest, LastReadoutsDoNotWaitForNothing) {
  Use(DraftsAtThree(), ReadoutsCost(2.4));
  const int32_t root = Root(6);
  EXPECT_EQ(Rows(), 1);  // nobody will be drafted from
  const int32_t child = Child(root, 0, 4);
  EXPECT_EQ(Rows(), 2);
  Child(child, 0, 1);
  EXPECT_EQ(Rows(), 3);  // both come to their readouts in two recurrences
  choice_->UpdateReach(tree_);
  tree_[tree_.active()[2]].depth = 0;
  choice_->ChooseAlone(tree_, false);  // drafts are left out
  EXPECT_TRUE(tree_[root].advancing);
  EXPECT_EQ(choice_->root_waits(), 0);
  ResolvedRequest paper = DraftsAtThree();
  paper.laboratory.every_branch = true;
  Use(paper, ReadoutsCost(2.4));
  EXPECT_EQ(Rows(), 3);
}

TEST_F(BranchChoiceTest, WaitingEndsWithTheBranchThatIsWaitedFor) {
  Use(DraftsAtThree(), ReadoutsCost(2.4));
  const int32_t root = Root(6), child = Child(root, 0, 6);  // waits with its parent
  const int32_t last = Child(child, 0, 0);
  EXPECT_EQ(Advancing(), (std::vector<bool>{false, false, true}));
  tree_.Prune(last, [](const Branch&) {});
  choice_->EndWait(tree_);
  EXPECT_TRUE(tree_[root].advancing);
  EXPECT_EQ(choice_->root_waits(), 0);
}

TEST_F(BranchChoiceTest, TheLeastLikelyLeafIsDispensable) {
  Use(FirstDraftsHold());
  const int32_t root = Root(7), first = Child(root, 0, 5), second = Child(root, 1, 3),
                grandchild = Child(first, 0, 3);
  choice_->UpdateReach(tree_);
  EXPECT_EQ(choice_->Dispensable(tree_, 1.0), second);
  // None that is as likely as the one that would take its place.
  EXPECT_EQ(choice_->Dispensable(tree_, tree_[second].reach), kNoBranch);
  // Inner branches stay, however unlikely; so does the root.
  tree_[first].reach = 0.001;
  EXPECT_EQ(choice_->Dispensable(tree_, 0.01), kNoBranch);
  tree_[grandchild].reach = 0.0005;
  EXPECT_EQ(choice_->Dispensable(tree_, 0.01), grandchild);
}

// Branches wait at the first depth until so many generations are there, but for none that is not
// worth waiting for.
TEST_F(BranchChoiceTest, GroupsWaitForEachOther) {
  ResolvedRequest request = Request();
  request.group = 2;
  Use(request);
  const int32_t root = Root(2);
  int32_t child = tree_.Add(root, 0, 101);  // on the way to the first depth
  tree_[root].proposals[tree_[root].proposal_count++] = {0, 0, child};
  EXPECT_EQ(Advancing(), (std::vector<bool>{false, true}));
  tree_[child].depth = 2;
  EXPECT_EQ(Advancing(), (std::vector<bool>{true, true}));
  tree_[child].depth = 1;
  Verdicts(200, -1);
  EXPECT_TRUE(Advancing()[0]);
}

// Longer contexts want larger groups where a depth's keys are read once for all its rows.
TEST_F(BranchChoiceTest, ChoosesTheGroupByCost) {
  ResolvedRequest request = Request();
  request.group = 0;
  StepCost cost;
  cost.plane_position = 1e-5;
  cost.context = 10;
  Use(request, cost);
  Root(1);
  Advancing();
  EXPECT_EQ(choice_->group(), 1);
  cost.context = 1'000'000;
  Use(request, cost);
  Advancing();
  EXPECT_GT(choice_->group(), 2);
}

}  // namespace
}  // namespace loopspec

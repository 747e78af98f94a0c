// The policy as a function: a view of the sequences in, what comes next out.
#include "engine/schedule/schedule.h"

#include <gtest/gtest.h>

#include <vector>

namespace loopspec {
namespace {

constexpr SequenceView Waiting(uint64_t submission) {
  return {Stage::kWaiting, submission};
}
constexpr SequenceView Prefilling(uint64_t submission, int64_t last_chunk) {
  return {Stage::kPrefill, submission, last_chunk};
}
constexpr SequenceView Decoding(uint64_t submission, int pages_missing = 0) {
  return {Stage::kDecode, submission, 0, pages_missing};
}
constexpr SequenceView Preempted(uint64_t submission) {
  return {Stage::kPreempted, submission};
}
constexpr SequenceView Ended(uint64_t submission) {
  return {Stage::kEnded, submission};
}

using Chunk = ScheduleView::Chunk;

struct Case {
  const char* what;
  std::vector<SequenceView> sequences;
  NextAction expected;
  // The rest of the view, where it matters.
  int max_running = 4;
  int pages_free = 8;
  bool admission_closed = false;
  Chunk chunk = Chunk::kNone;
  int64_t recurrences = INT32_MAX, tokens = 0;  // since the last chunk
};

void Expect(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    ScheduleView view;
    view.sequences = c.sequences;
    view.max_running = c.max_running;
    view.pages_free = c.pages_free;
    view.recurrence = 4;
    view.admission_closed = c.admission_closed;
    view.chunk = c.chunk;
    view.recurrences = c.recurrences;
    view.tokens = c.tokens;
    const NextAction next = Schedule(view);
    EXPECT_EQ(next.action, c.expected.action) << c.what;
    EXPECT_EQ(next.sequence, c.expected.sequence) << c.what;
  }
}

TEST(Schedule, Admission) {
  Expect({
      {"nothing to do", {}, {Action::kStep}},
      {"in order of arrival", {Waiting(1), Waiting(2)}, {Action::kAdmit, 0}},
      {"beside those that run", {Decoding(1), Waiting(2)}, {Action::kAdmit, 1}},
      {"what has ended takes no place", {Ended(1), Waiting(2)}, {Action::kAdmit, 1}, 1},
      {"as many as may run", {Decoding(1), Decoding(2), Waiting(3)}, {Action::kStep}, 2},
      {"none may pass one that does not fit",
       {Decoding(1), Waiting(2), Waiting(3)},
       {Action::kStep},
       4,
       8,
       true},
      {"a preempted sequence comes before an older one that waits",
       {Decoding(1), Waiting(2), Preempted(3)},
       {Action::kResume, 2}},
      {"the oldest preempted one first",
       {Decoding(1), Preempted(2), Preempted(3)},
       {Action::kResume, 1}},
      {"and nobody new while one does not fit",
       {Decoding(1), Preempted(2), Waiting(3)},
       {Action::kStep},
       4,
       8,
       true},
  });
}

TEST(Schedule, ChoicesOfOneSubmission) {
  Expect({
      {"wait for the prompt of the first",
       {Prefilling(1, 0), Waiting(1), Waiting(1)},
       {Action::kStep},
       4,
       8,
       false,
       Chunk::kSettled},
      {"while others pass them", {Prefilling(1, 0), Waiting(1), Waiting(2)}, {Action::kAdmit, 2}},
      {"and come when it is there", {Decoding(1), Waiting(1), Waiting(2)}, {Action::kAdmit, 1}},
      {"even if the first has ended", {Ended(1), Waiting(1)}, {Action::kAdmit, 1}},
      {"another submission's prompt is none of theirs",
       {Prefilling(1, 0), Waiting(2), Waiting(2)},
       {Action::kAdmit, 1}},
  });
}

TEST(Schedule, ChunksOfPrompts) {
  const std::vector<SequenceView> two = {Decoding(1), Decoding(2), Prefilling(3, 5)};
  Expect({
      {"the one that has waited longest",
       {Prefilling(1, 7), Prefilling(2, 5)},
       {Action::kBeginChunk, 1}},
      {"whatever its age", {Prefilling(1, 5), Prefilling(2, 7)}, {Action::kBeginChunk, 0}},
      {"between equals the younger",
       {Prefilling(1, 5), Prefilling(2, 5)},
       {Action::kBeginChunk, 1}},
      {"one at a time", {Prefilling(1, 5)}, {Action::kCheckChunk}, 4, 8, false, Chunk::kInFlight},
      {"and one in a step", {Prefilling(1, 5)}, {Action::kStep}, 4, 8, false, Chunk::kSettled},
      {"admission comes first", {Prefilling(1, 5), Waiting(2)}, {Action::kAdmit, 1}},
      {"the streams first get a token each", two, {Action::kStep}, 4, 8, false, Chunk::kNone, 3, 1},
      {"which both have", two, {Action::kBeginChunk, 2}, 4, 8, false, Chunk::kNone, 3, 2},
      {"or R recurrences", two, {Action::kBeginChunk, 2}, 4, 8, false, Chunk::kNone, 4, 1},
      {"without streams at once",
       {Prefilling(1, 5)},
       {Action::kBeginChunk, 0},
       4,
       8,
       false,
       Chunk::kNone,
       0,
       0},
  });
}

TEST(Schedule, Preemption) {
  Expect({
      {"none while pages suffice", {Decoding(1, 1), Decoding(2, 1)}, {Action::kStep}, 4, 2},
      {"the youngest goes", {Decoding(1, 1), Decoding(2, 1)}, {Action::kPreempt, 1}, 4, 1},
      {"also when it needs none itself",
       {Decoding(1, 1), Decoding(2)},
       {Action::kPreempt, 1},
       4,
       0},
      {"or is being prefilled",
       {Decoding(1, 1), Decoding(2), Prefilling(3, 0)},
       {Action::kPreempt, 2},
       4,
       0,
       false,
       Chunk::kSettled},
      {"not one that is out already",
       {Decoding(1, 1), Decoding(2), Preempted(3), Waiting(4)},
       {Action::kPreempt, 1},
       4,
       0,
       true},
      {"a prompt needs none for the step",
       {Decoding(1), Prefilling(2, 0)},
       {Action::kStep},
       4,
       0,
       false,
       Chunk::kSettled},
      {"the chunk in flight is looked at first",
       {Decoding(1, 1), Prefilling(2, 0)},
       {Action::kCheckChunk},
       4,
       0,
       false,
       Chunk::kInFlight},
  });
}

// ---- Rows ----

// Eight rows cost little more than one, every further one as much as those.
StepCost RowsCost() {
  StepCost cost;
  cost.recurrence = {1, 1, 1, 1, 2, 4, 8, 16, 32};
  cost.readout = 0.1;
  cost.readout_row = 0.02;
  return cost;
}

constexpr int kDepths[] = {1, 2};
constexpr DecodeView kGreedy = {kDepths, 0.9, 0.075, 100, true, false};
constexpr DecodeView kCascade = {kDepths, 0.9, 0.075, 100, false, false};
constexpr DecodeView kPlain = {{}, 0, 0, 100, false, false};

RowSchedule Rows(const std::vector<DecodeView>& sequences, int max_rows, bool drafting = true) {
  return ScheduleRows({sequences, 4, max_rows, drafting}, RowsCost());
}

TEST(ScheduleRows, DraftsAreLeftOutWhereTheyGainNothing) {
  EXPECT_EQ(Rows({kGreedy}, 64), (RowSchedule{true, false, 64}));
  EXPECT_EQ(Rows({kGreedy, kGreedy}, 64), (RowSchedule{true, false, 64}));
  // The device is full with a row each.
  std::vector<DecodeView> many(32, kGreedy);
  EXPECT_EQ(Rows(many, 64), (RowSchedule{false, true, 64}));
  // Drafts that never hold gain nothing for two either.
  DecodeView poor = kGreedy;
  poor.first = poor.second = 0;
  EXPECT_FALSE(Rows({poor, poor}, 64).drafting);
  // One that draws its text from drafts goes on making them, so tokens do not begin together.
  many.push_back(kCascade);
  EXPECT_EQ(Rows(many, 64), (RowSchedule{false, false, 64}));
  // Where nobody drafts there is nothing to leave out, and one without drafts holds nobody up.
  EXPECT_EQ(Rows(std::vector<DecodeView>(32, kPlain), 64), (RowSchedule{true, false, 64}));
  many.back() = kPlain;
  EXPECT_EQ(Rows(many, 64), (RowSchedule{false, true, 64}));
}

// Between the load at which drafts are dropped and the one at which they are taken up again lies
// one at which both stay as they are.
TEST(ScheduleRows, DoesNotGoBackAndForth) {
  bool undecided = false;
  for (double share = 0; share <= 1; share += 0.002) {
    DecodeView view = kGreedy;
    view.first = share;
    view.second = 0;
    const std::vector<DecodeView> four(4, view);
    const bool stays = Rows(four, 64, true).drafting, returns = Rows(four, 64, false).drafting;
    EXPECT_TRUE(stays || !returns) << share;
    undecided = undecided || (stays && !returns);
  }
  EXPECT_TRUE(undecided);
}

TEST(ScheduleRows, FewRowsWhileAFirstTokenIsAwaited) {
  DecodeView first = kGreedy;
  first.awaits_first_token = true;
  EXPECT_EQ(Rows({kGreedy, kGreedy}, 64).limit, 64);
  EXPECT_EQ(Rows({kGreedy, first}, 64).limit, 10);  // the last with 1.25 times the cost of two
  EXPECT_EQ(Rows({kGreedy, first}, 6).limit, 6);
  // A row for every sequence there always is.
  EXPECT_EQ(Rows({kGreedy, kGreedy, kGreedy}, 2).limit, 3);
}

}  // namespace
}  // namespace loopspec

// The policy as a function: a view of the sequences in, a plan out.
#include "engine/schedule/schedule.h"

#include <gtest/gtest.h>

#include <vector>

namespace loopspec {
namespace {

constexpr SequenceView Waiting(uint64_t submission) {
  return {Stage::kWaiting, submission};
}
constexpr SequenceView Prefilling(uint64_t submission, int64_t prompt_left) {
  SequenceView view{Stage::kPrefill, submission};
  view.prompt_left = view.work_left = prompt_left;
  return view;
}
constexpr SequenceView Decoding(uint64_t submission, int pages_missing = 0) {
  return {Stage::kDecode, submission, pages_missing};
}
constexpr SequenceView Preempted(uint64_t submission) {
  return {Stage::kPreempted, submission};
}
constexpr SequenceView Ended(uint64_t submission) {
  return {Stage::kEnded, submission};
}
// The same of another tenant, with another priority, with so much to do, after so many seconds.
constexpr SequenceView Of(int tenant, SequenceView view) {
  view.tenant = tenant;
  return view;
}
constexpr SequenceView Priority(int priority, SequenceView view) {
  view.priority = priority;
  return view;
}
constexpr SequenceView Work(int64_t work_left, SequenceView view, double waited = 0) {
  view.work_left = work_left;
  view.waited = waited;
  return view;
}
constexpr SequenceView Begins(SequenceView view) {
  view.begins = true;
  return view;
}

// What the plan has to begin with: the first admission, the chunk, the first to be preempted.
struct Expected {
  Admit admit = {};
  int chunk = -1;
  bool overtakes = false;
  int preempt = -1;
};
constexpr Expected Admits(int sequence, int replaces = -1) {
  return {{sequence, replaces}};
}
constexpr Expected Chunk(int sequence) {
  return {{}, sequence};
}
constexpr Expected Overtakes(int sequence) {
  return {{}, sequence, true};
}
constexpr Expected Preempts(int sequence) {
  return {{}, -1, false, sequence};
}

struct Case {
  const char* what;
  std::vector<SequenceView> sequences;
  Expected expected;
  // The rest of the view, where it matters.
  int max_running = 4;
  int pages_free = 8;
  bool admission_closed = false;
  bool chunk_in_flight = false;
  int64_t loops = INT32_MAX, tokens = 0;  // since the last chunk
  std::vector<TenantView> tenants = {{}};
  bool pages_short = false;
  bool overtook = false;
  double step_seconds = 100, chunk_seconds = 1;
};

constexpr int kChunk = 10;  // positions

ScheduleView ViewOf(const Case& c) {
  ScheduleView view;
  view.sequences = c.sequences;
  view.tenants = c.tenants;
  view.pacing = {c.loops, c.tokens, c.chunk_seconds, c.step_seconds, c.overtook, c.pages_short};
  view.max_running = c.max_running;
  view.pages_free = c.pages_free;
  view.recurrence = 4;
  view.chunk_positions = kChunk;
  view.admission_open = !c.admission_closed;
  view.chunk_in_flight = c.chunk_in_flight;
  return view;
}

void Expect(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    const Plan plan = Schedule(ViewOf(c));
    EXPECT_EQ(plan.admit.empty() ? Admit{} : plan.admit[0], c.expected.admit) << c.what;
    EXPECT_EQ(plan.chunk, c.expected.chunk) << c.what;
    EXPECT_EQ(plan.overtakes, c.expected.overtakes) << c.what;
    EXPECT_EQ(plan.preempt.empty() ? -1 : plan.preempt[0], c.expected.preempt) << c.what;
  }
}

TEST(Schedule, Admission) {
  Expect({
      {"nothing to do", {}, {}},
      {"in order of arrival", {Waiting(1), Waiting(2)}, Admits(0)},
      {"beside those that run", {Decoding(1), Waiting(2)}, Admits(1)},
      {"what has ended takes no place", {Ended(1), Waiting(2)}, Admits(1), 1},
      {"as many as may run", {Decoding(1), Decoding(2), Waiting(3)}, {}, 2},
      {"none may pass one that does not fit",
       {Decoding(1), Waiting(2), Waiting(3)},
       {},
       4,
       8,
       true},
      {"a preempted sequence comes before an older one that waits",
       {Decoding(1), Waiting(2), Preempted(3)},
       Admits(2)},
      {"the oldest preempted one first", {Decoding(1), Preempted(2), Preempted(3)}, Admits(1)},
      {"and nobody new while one does not fit",
       {Decoding(1), Preempted(2), Waiting(3)},
       {},
       4,
       8,
       true},
      {"nor one that is out when all places are taken",
       {Decoding(1), Decoding(2), Preempted(3)},
       {},
       2},
      {"by priority before age", {Waiting(1), Priority(-1, Waiting(2))}, Admits(1)},
      {"but who is out comes first", {Preempted(1), Priority(-1, Waiting(2))}, Admits(0)},
  });
}

TEST(Schedule, TenantsDivideThePlaces) {
  const std::vector<TenantView> two(2), heavy = {{}, {.weight = 3}};
  const auto with = [](Case c, std::vector<TenantView> tenants) {
    c.tenants = std::move(tenants);
    return c;
  };
  Expect({
      with({"the tenant with fewer places comes first",
            {Decoding(1), Waiting(2), Of(1, Waiting(3))},
            Admits(2)},
           two),
      with({"between equals the older",
            {Decoding(1), Of(1, Decoding(2)), Of(1, Waiting(3)), Waiting(4)},
            Admits(2)},
           two),
      with({"by weight",
            {Decoding(1), Of(1, Decoding(2)), Of(1, Decoding(3)), Waiting(4), Of(1, Waiting(5))},
            Admits(4),
            8},
           heavy),
      with({"no priority of one tenant is above another tenant",
            {Decoding(1), Priority(-9, Waiting(2)), Of(1, Waiting(3))},
            Admits(2)},
           two),
      with({"where all places are taken one is given up, the youngest",
            {Decoding(1), Decoding(2), Decoding(3), Decoding(4), Waiting(5), Of(1, Waiting(6))},
            Admits(5, 3)},
           two),
      with({"until both have as many",
            {Decoding(1), Decoding(2), Of(1, Decoding(3)), Of(1, Decoding(4)), Waiting(5),
             Of(1, Waiting(6))},
            {}},
           two),
      with({"and no further, where they cannot have as many",
            {Decoding(1), Decoding(2), Of(1, Decoding(3)), Waiting(4), Of(1, Waiting(5))},
            {},
            3},
           two),
      with({"a heavy tenant gets more",
            {Decoding(1), Decoding(2), Of(1, Decoding(3)), Of(1, Decoding(4)), Of(1, Waiting(6))},
            Admits(4, 1)},
           heavy),
      with({"a tenant of hardly any weight gets what nobody else wants",
            {Decoding(1), Of(1, Decoding(2)), Of(1, Waiting(3))},
            Admits(2)},
           {{}, {.weight = 1e-310}}),
      with({"one that went out goes on in the place of another tenant's",
            {Decoding(1), Decoding(2), Decoding(3), Decoding(4), Of(1, Preempted(5))},
            Admits(4, 3)},
           two),
  });
  Case pages = with({"so it is where pages are short",
                     {Decoding(1), Decoding(2), Of(1, Waiting(3))},
                     Admits(2, 1),
                     8},
                    two);
  pages.pages_short = true;
  Expect({pages});
}

// A short request does not wait for long ones to end.
TEST(Schedule, ShortRequestsWaitABoundedTime) {
  const SequenceView running = Work(800, Decoding(1));
  Expect({
      {"not at once", {running, Work(2, Waiting(2), 0.9)}, {}, 1},
      {"but after a second", {running, Work(2, Waiting(2), 1.0)}, Admits(1, 0), 1},
      {"if it is short beside what runs", {running, Work(101, Waiting(2), 9)}, {}, 1},
      {"as an eighth of it is", {running, Work(100, Waiting(2), 9)}, Admits(1, 0), 1},
      {"before older ones that are not",
       {running, Work(700, Waiting(2), 9), Work(10, Waiting(3), 2)},
       Admits(2, 0),
       1},
      {"in the place of the one with most to do",
       {Work(500, Decoding(1)), Work(900, Decoding(2)), Work(700, Decoding(3)),
        Work(10, Waiting(4), 2)},
       Admits(3, 1),
       3},
      {"of which one at a time is out, and goes on first",
       {Work(2, Decoding(1)), Work(799, Preempted(2)), Work(2, Waiting(3), 9)},
       {},
       1},
      {"as soon as there is a place",
       {Work(799, Preempted(2)), Work(2, Waiting(3), 9)},
       Admits(0),
       1},
      {"with a free place nobody has to go", {running, Work(2, Waiting(2), 9)}, Admits(1), 2},
  });
  std::vector<SequenceView> many(16, running);
  many.push_back(Work(799, Preempted(2)));
  many.push_back(Work(2, Waiting(3), 9));
  Expect({{"an eighth of the places at a time", many, Admits(17, 15), 16}});
  many.insert(many.begin(), Work(799, Preempted(2)));
  Expect({{"and no more", many, {}, 16}});
}

TEST(Schedule, ChoicesOfOneSubmission) {
  Expect({
      {"wait for the prompt of the first",
       {Prefilling(1, 0), Waiting(1), Waiting(1)},
       {},
       4,
       8,
       false,
       true},
      {"while others pass them", {Prefilling(1, 0), Waiting(1), Waiting(2)}, Admits(2)},
      {"and come when it is there", {Decoding(1), Waiting(1), Waiting(2)}, Admits(1)},
      {"even if the first has ended", {Ended(1), Waiting(1)}, Admits(1)},
      {"however long they have waited",
       {Work(900, Decoding(1)), Prefilling(2, 0), Work(2, Waiting(2), 9), Work(700, Waiting(3))},
       {},
       2,
       8,
       false,
       true},
      {"another submission's prompt is none of theirs",
       {Prefilling(1, 0), Waiting(2), Waiting(2)},
       Admits(1)},
  });
}

TEST(Schedule, ChunksOfPrompts) {
  const std::vector<SequenceView> two = {Decoding(1), Decoding(2), Prefilling(3, 5)};
  Expect({
      {"the oldest", {Prefilling(1, 50), Prefilling(2, 50)}, Chunk(0)},
      {"until it is done", {Prefilling(1, 11), Prefilling(2, 50)}, Chunk(0)},
      {"by priority before age", {Prefilling(1, 50), Priority(-1, Prefilling(2, 50))}, Chunk(1)},
      {"one at a time", {Prefilling(1, 5)}, {}, 4, 8, false, true},
      {"admission comes first", {Prefilling(1, 5), Waiting(2)}, Admits(1)},
      {"the streams first get a token each", two, {}, 4, 8, false, false, 3, 1},
      {"which both have", two, Chunk(2), 4, 8, false, false, 3, 2},
      {"or R recurrences", two, Chunk(2), 4, 8, false, false, 4, 1},
      {"without streams at once", {Prefilling(1, 5)}, Chunk(0), 4, 8, false, false, 0, 0},
  });
}

TEST(Schedule, ShortPromptsOvertakeLongOnes) {
  Case again = {"but not twice in a row", {Prefilling(1, 50), Prefilling(2, kChunk)}, Chunk(0)};
  again.overtook = true;
  Expect({
      {"which a chunk holds", {Prefilling(1, 50), Prefilling(2, kChunk)}, Overtakes(1)},
      {"the oldest of them", {Prefilling(1, 50), Prefilling(2, 4), Prefilling(3, 3)}, Overtakes(1)},
      {"and none that a chunk does not hold",
       {Prefilling(1, 50), Prefilling(2, kChunk + 1)},
       Chunk(0)},
      {"short ones among themselves by age", {Prefilling(1, kChunk), Prefilling(2, 1)}, Chunk(0)},
      again,
  });
}

TEST(Schedule, TenantsDivideTheChunks) {
  Case c = {"to the tenant that got least for its weight",
            {Prefilling(1, 50), Of(1, Prefilling(2, 50)), Of(1, Prefilling(3, 5))},
            Overtakes(2)};
  c.tenants = {{.prefilled = 100}, {.prefilled = 90}};
  Case other = {"whatever short prompts the others have",
                {Prefilling(1, 50), Of(1, Prefilling(2, 5))},
                Chunk(0)};
  other.tenants = {{.prefilled = 80}, {.prefilled = 90}};
  Expect({c, other});
}

// Chunks of long prompts leave two thirds of the time to answers that begin.
TEST(Schedule, AnswersBeginBesideLongPrompts) {
  const auto after = [](Case c, double step_seconds) {
    c.step_seconds = step_seconds;
    return c;
  };
  const std::vector<SequenceView> beside = {Begins(Decoding(1)), Prefilling(2, 50)};
  Expect({
      after({"so they wait", beside, {}}, 1.9),
      after({"twice as long as the last took", beside, Chunk(1)}, 2.0),
      after({"but short ones do not", {Begins(Decoding(1)), Prefilling(2, kChunk)}, Chunk(1)}, 0),
      after({"and not for answers that are under way", {Decoding(1), Prefilling(2, 50)}, Chunk(1)},
            0),
  });
}

TEST(Schedule, Preemption) {
  Expect({
      {"none while pages suffice", {Decoding(1, 1), Decoding(2, 1)}, {}, 4, 2},
      {"the youngest goes", {Decoding(1, 1), Decoding(2, 1)}, Preempts(1), 4, 1},
      {"also when it needs none itself", {Decoding(1, 1), Decoding(2)}, Preempts(1), 4, 0},
      {"or is being prefilled",
       {Decoding(1, 1), Decoding(2), Prefilling(3, 0)},
       Preempts(2),
       4,
       0,
       false,
       true},
      {"not one that is out already",
       {Decoding(1, 1), Decoding(2), Preempted(3), Waiting(4)},
       Preempts(1),
       4,
       0,
       true},
      {"the last too, whose own pages keep cached ones from being evicted",
       {Decoding(1, 1)},
       Preempts(0),
       4,
       0},
      {"a prompt needs none for the step", {Decoding(1), Prefilling(2, 0)}, {}, 4, 0, false, true},
      {"also beside a chunk in flight",
       {Decoding(1, 1), Prefilling(2, 0)},
       Preempts(1),
       4,
       0,
       false,
       true},
  });
  Case equal = {"between tenants that have as many the youngest",
                {Decoding(1, 1), Decoding(2), Of(1, Decoding(3))},
                Preempts(2),
                4,
                0};
  equal.tenants = {{}, {}};
  Case fullest = {"of the tenant that has most",
                  {Decoding(1, 1), Decoding(2), Decoding(3), Of(1, Decoding(4))},
                  Preempts(2),
                  4,
                  0};
  Case oldest = {"never the oldest", {Of(1, Decoding(1, 1)), Decoding(2)}, Preempts(1), 4, 0};
  fullest.tenants = oldest.tenants = {{}, {.weight = 0.1}};
  fullest.tenants[1].weight = 1;
  Expect({equal, fullest, oldest});
}

// A plan is a whole: everybody who comes in, and everybody who may have to go, in order.
TEST(Schedule, WholePlans) {
  const auto plan = [](Case c) { return Schedule(ViewOf(c)); };
  using List = std::vector<Admit>;
  EXPECT_EQ(plan({"", {Waiting(1), Waiting(2), Waiting(3)}, {}, 2}).admit, (List{{0}, {1}}));
  EXPECT_EQ(plan({"", {Work(9, Waiting(1)), Preempted(2), Waiting(3)}, {}, 3}).admit,
            (List{{1}, {0}, {2}}));
  // Choices wait for the prompt of the first that is to be admitted; those of one token do not.
  SequenceView with_prompt = Waiting(1);
  with_prompt.prompt_left = 5;
  EXPECT_EQ(plan({"", {with_prompt, with_prompt, Waiting(2), Waiting(2)}, {}}).admit,
            (List{{0}, {2}, {3}}));
  Case tenants = {"", {Decoding(1), Decoding(2), Of(1, Waiting(3)), Of(1, Waiting(4))}, {}, 2};
  tenants.tenants = {{}, {}};
  EXPECT_EQ(plan(tenants).admit, (List{{2, 1}}));
  // A chunk beside those that have to go: the youngest first, the oldest last.
  const Plan short_of_pages =
      plan({"", {Decoding(1, 2), Decoding(2, 1), Prefilling(3, 5)}, {}, 4, 2});
  EXPECT_EQ(short_of_pages.chunk, 2);
  EXPECT_EQ(short_of_pages.pages, 3);
  EXPECT_EQ(short_of_pages.preempt, (std::vector<int>{2, 1, 0}));
  const Plan enough = plan({"", {Decoding(1, 2), Decoding(2, 1)}, {}, 4, 3});
  EXPECT_EQ(enough.pages, 3);
  EXPECT_TRUE(enough.preempt.empty());
}

// ---- Rows ----

TEST(Schedule, FewRowsWhileAFirstTokenIsAwaited) {
  StepCost cost;  // eight rows cost little more than one, every further one as much as those
  cost.recurrence = {1, 1, 1, 1, 2, 4, 8, 16, 32};
  EXPECT_EQ(RowLimit(2, 64, false, cost), 64);
  EXPECT_EQ(RowLimit(2, 64, true, cost), 10);  // the last with 1.25 times the cost of two
  EXPECT_EQ(RowLimit(2, 6, true, cost), 6);
  // A row for every sequence there always is.
  EXPECT_EQ(RowLimit(3, 2, false, cost), 3);
  EXPECT_EQ(RowLimit(3, 2, true, cost), 3);
}

}  // namespace
}  // namespace loopspec

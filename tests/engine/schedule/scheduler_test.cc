// Many requests over one backend, on a model of five tokens: everybody gets the text that it gets
// alone, whatever else runs, and everything is given back.
#include "engine/schedule/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/timer.h"
#include "tests/support/fake_backend.h"

namespace loopspec {
namespace {

constexpr int kRecurrence = 4;

// Watches what a scheduler asks of its backend, and fails when told to.
class WatchedBackend : public FakeBackend {
 public:
  WatchedBackend(FakeModel& model, int cells, int positions)
      : FakeBackend(model, {1, 2}, cells, positions) {
    set_decider(DecideLikeTheCpu());
  }

  bool prefill_equals_decode() const override { return equal; }
  int PrefillChunk() const override { return 32; }
  Ticket SubmitPrefill(std::span<const PrefillPlan> parts) override {
    if (fail_prefill-- == 0) throw Error("the prompt went wrong");
    for (const PrefillPlan& part : parts) {
      prefilled_since_step += static_cast<int>(part.tokens.size());
      prefilled += static_cast<int>(part.tokens.size());
    }
    const Ticket ticket = FakeBackend::SubmitPrefill(parts);
    asked = 0;
    return ticket;
  }
  bool PrefillDone(Ticket) override { return !starved && (!slow || asked++ > 0); }
  Ticket Submit(const StepPlan& plan) override {
    if (!plan.rows.empty()) {
      if (fail_step-- == 0) throw Error("the device went wrong");
      most_between_steps = std::max(most_between_steps, prefilled_since_step);
      prefilled_since_step = 0;
      most_rows = std::max(most_rows, static_cast<int>(plan.rows.size()));
    }
    return FakeBackend::Submit(plan);
  }

  bool equal = true;
  bool slow = false;     // a chunk takes as long as a step
  bool starved = false;  // a chunk gets nowhere unless it is waited for
  int asked = 0;
  int fail_step = -1, fail_prefill = -1;  // after so many more
  int prefilled = 0, prefilled_since_step = 0, most_between_steps = 0, most_rows = 0;
};

struct Outcome {
  std::vector<int32_t> ids;
  Statistics result;
};

// Everything that a stream has, without waiting for more.
std::vector<Outcome> Read(TokenStream& stream) {
  std::vector<Outcome> outcomes(static_cast<size_t>(stream.choices()));
  StreamEvent event;
  while (IsEvent(stream.Next(event, std::chrono::milliseconds(0)))) {
    Outcome& outcome = outcomes[static_cast<size_t>(event.token.choice)];
    if (event.status == Stream::Status::kToken) outcome.ids.push_back(event.token.id);
    if (event.status == Stream::Status::kEnd)
      outcome.result = stream.statistics(event.token.choice);
  }
  return outcomes;
}

std::vector<int32_t> Alone(FakeModel& model, const ResolvedRequest& request, int choice = 0) {
  FakeBackend backend(model, {1, 2}, 64, 1024);
  backend.set_decider(DecideLikeTheCpu());
  KvLedger ledger(backend.pages(), 64);
  LoopSpec decoder(Share(request, model.spec()), choice, model.spec(), backend.options(), ledger,
                   SequencePages(ledger, std::ssize(request.prompt) + int64_t{request.max_tokens}),
                   nullptr);
  StepPlan plan;
  Drive(backend, decoder, plan);
  std::vector<int32_t> ids;
  for (const Token& token : decoder.output()) ids.push_back(token.id);
  return ids;
}

std::vector<int32_t> Tokens(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % kFakeVocab);
  return tokens;
}

ResolvedRequest Plain(size_t prompt, int max_tokens, uint32_t seed) {
  ResolvedRequest request;
  request.prompt = Tokens(prompt, seed);
  request.depths = {1, 2};
  request.max_tokens = max_tokens;
  return request;
}

// Requests of all kinds and lengths; every third begins like others.
ResolvedRequest Mixed(uint32_t i) {
  std::mt19937 random(i);
  ResolvedRequest request = Plain(1 + random() % 200, 1 + static_cast<int>(random() % 150), i);
  if (i % 3 == 0) {
    std::vector<int32_t> prompt = Tokens(64 * (1 + i % 2), 77);
    prompt.insert(prompt.end(), request.prompt.begin(), request.prompt.end());
    request.prompt = prompt;
  }
  const std::vector<std::vector<int>> depths = {{1, 2}, {}, {2}, {1}};
  request.depths = depths[random() % depths.size()];
  request.guesses = random() % 2 == 0;
  request.group = static_cast<int>(random() % 3);
  request.seed = i;
  if (i % 4 != 0) request.sampling.temperature = 0.9f;
  if (i % 4 == 1) request.sampling.sampler = Sampler::kCoupled;
  if (i % 4 == 2) request.sampling.frequency_penalty = 0.3f;
  if (i % 5 == 0) request.stop_tokens = {static_cast<int32_t>(i % kFakeVocab)};
  return request;
}

ResolvedRequest Choices(ResolvedRequest request, int choices) {
  request.choices = choices;
  return request;
}

// With log-probabilities of its prompt.
ResolvedRequest Scored(ResolvedRequest request, int prompt_logprobs) {
  request.prompt_logprobs = prompt_logprobs;
  return request;
}

ResolvedRequest OfTenant(ResolvedRequest request, uint64_t tenant, double weight = 1) {
  request.tenant = tenant;
  request.weight = weight;
  return request;
}

// Eight rows cost little more than one, every further one as much as those.
StepCost RowsCost() {
  StepCost cost;
  cost.recurrence = {1, 1, 1, 1, 2, 4, 8, 16, 32};
  cost.readout = 0.1;
  cost.readout_row = 0.02;
  return cost;
}

void ExpectNothingHeld(const Scheduler& scheduler) {
  const EngineMetrics state = scheduler.state();
  EXPECT_EQ(state.waiting + state.prefilling + state.decoding + state.preempted, 0);
  EXPECT_EQ(state.cells_free, state.cells);
  EXPECT_EQ(state.pages_free + state.pages_cached, state.pages);
}

// 64 streams, cancellations among them, with room for all and with little.
TEST(Scheduler, ManyStreamsGetWhatEachGetsAlone) {
  bool costly = false;
  for (const int positions : {64 * 300, 64 * 9}) {
    for (const int cells : {256, 24}) {
      FakeModel model(5, FakeShape::kNear, kRecurrence);
      WatchedBackend backend(model, cells, positions);
      backend.slow = cells == 24;
      SchedulerOptions options;
      options.max_running = 12;
      options.short_wait = INFINITY;
      // Where rows cost, drafts come and go with the number of requests.
      if (costly) options.cost = RowsCost();
      costly = !costly;
      Scheduler scheduler(backend, options);
      std::mt19937 random(9);
      std::vector<std::shared_ptr<TokenStream>> streams;
      std::vector<std::vector<int32_t>> got(64);
      std::vector<Statistics> results(64);
      const auto read = [&](size_t i) {
        const Outcome more = Read(*streams[i])[0];
        got[i].insert(got[i].end(), more.ids.begin(), more.ids.end());
        if (more.result.finish_reason != FinishReason::kNone) results[i] = more.result;
      };
      bool busy = true;
      for (int turn = 0; busy || streams.size() < 64; ++turn) {
        ASSERT_LT(turn, 100000);
        if (streams.size() < 64 && random() % 2 == 0)
          streams.push_back(scheduler.Submit(Mixed(streams.size())));
        if (random() % 50 == 0 && !streams.empty()) {
          const size_t which = random() % streams.size();
          if (which % 6 == 1) streams[which]->Cancel();
        }
        busy = scheduler.Step();
        if (random() % 2 == 0 && !streams.empty()) read(random() % streams.size());
      }
      int64_t cancelled = 0, cached = 0;
      for (size_t i = 0; i < streams.size(); ++i) {
        read(i);
        std::vector<int32_t> alone = Alone(model, Mixed(static_cast<uint32_t>(i)));
        ASSERT_NE(results[i].finish_reason, FinishReason::kNone);
        ASSERT_NE(results[i].finish_reason, FinishReason::kError) << results[i].error;
        if (results[i].finish_reason == FinishReason::kCancelled) {
          ++cancelled;
          alone.resize(std::min(alone.size(), got[i].size()));
        }
        EXPECT_EQ(got[i], alone) << "request " << i;
        EXPECT_EQ(results[i].decoded_tokens, static_cast<int64_t>(got[i].size()));
        cached += results[i].cached_tokens;
      }
      EXPECT_GT(cancelled, 0);
      EXPECT_GT(cached, 0);
      if (positions > 64 * 100) {
        EXPECT_EQ(scheduler.state().preemptions, 0);
      }
      ExpectNothingHeld(scheduler);
    }
  }
}

// Short prompts and long answers in a few pages: most are preempted and resumed, some of
// them while their prompt is being prefilled.
TEST(Scheduler, PreemptedAndResumedWithTheSameText) {
  for (const int cells : {128, 12}) {
    FakeModel model(4, FakeShape::kNear, kRecurrence);
    WatchedBackend backend(model, cells, 64 * 9);
    backend.equal = cells == 12;
    Scheduler scheduler(backend);
    const auto request = [](uint32_t i) {
      ResolvedRequest made = Mixed(i);
      made.stop_tokens.clear();
      made.prompt = Tokens(i % 3 == 2 ? 300 : 40, i);
      made.max_tokens = 200 + static_cast<int>(i);
      return made;
    };
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (uint32_t i = 0; i < 12; ++i) streams.push_back(scheduler.Submit(request(i)));
    int turns = 0;
    while (scheduler.Step()) ASSERT_LT(++turns, 100000);
    int times = 0;
    for (uint32_t i = 0; i < 12; ++i) {
      const Outcome outcome = Read(*streams[i])[0];
      EXPECT_EQ(outcome.result.finish_reason, FinishReason::kLength) << outcome.result.error;
      EXPECT_EQ(outcome.ids, Alone(model, request(i))) << "request " << i;
      times += outcome.result.preemptions;
      if (i == 0) {
        EXPECT_EQ(times, 0);  // the oldest never is
      }
    }
    EXPECT_GE(times, 6);
    EXPECT_EQ(times, scheduler.state().preemptions);
    ExpectNothingHeld(scheduler);
  }
}

// Two prompts that begin alike are prefilled side by side, so that each has pages of its own; those
// of the first are cached, and the second one's later page after them. While the second reads that
// page, the cache cannot give up the pages before it: the second, alone and short of pages, gives
// its own up for a moment, and everything that is cached can go.
TEST(Scheduler, ASequenceThatIsAloneAndShortOfPagesGivesItsOwnUp) {
  FakeModel model(4, FakeShape::kNear, kRecurrence);
  constexpr int kPages = 10;
  WatchedBackend backend(model, 64, 64 * kPages);
  SchedulerOptions options;
  options.first_tokens = 0;
  Scheduler scheduler(backend, options);
  ResolvedRequest second = Plain(64 * 4 + 1, 64 * (kPages - 4) - 1, 1);
  second.tenant = 2;
  ResolvedRequest first = second;
  first.tenant = 1;
  first.prompt.resize(64 * 3 + 1);
  first.max_tokens = 1;
  const auto before = scheduler.Submit(first);
  const auto stream = scheduler.Submit(second);
  int turns = 0;
  while (scheduler.Step()) ASSERT_LT(++turns, 10000);
  const Outcome outcome = Read(*stream)[0];
  EXPECT_EQ(outcome.ids, Alone(model, second));
  EXPECT_EQ(outcome.result.cached_tokens, 0);
  EXPECT_EQ(outcome.result.preemptions, 1);
  ExpectNothingHeld(scheduler);
}

TEST(Scheduler, StreamsAdvanceTogetherAndPromptsDoNotStallThem) {
  FakeModel model(6, FakeShape::kNear, kRecurrence);
  WatchedBackend backend(model, 64, 64 * 200);
  SchedulerOptions options;
  options.first_tokens = 0;
  Scheduler scheduler(backend, options);
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (uint32_t i = 0; i < 8; ++i) {
    ResolvedRequest request = Plain(2, 400, i);
    request.depths = {};
    streams.push_back(scheduler.Submit(request));
  }
  while (scheduler.state().decoding < 8) scheduler.Step();
  std::vector<size_t> tokens(8);
  for (auto& stream : streams) Read(*stream);
  // Two long prompts arrive: 64 chunks to prefill, each beside a step.
  const auto long_one = [](uint32_t seed) {
    ResolvedRequest request = Plain(1025, 1, seed);
    request.depths = {};
    return request;
  };
  const auto first = scheduler.Submit(long_one(100));
  const auto second = scheduler.Submit(long_one(101));
  backend.most_between_steps = 0;
  for (int turn = 0; turn < 64; ++turn) {
    const int before = backend.prefilled;
    scheduler.Step();
    EXPECT_EQ(backend.prefilled - before, 32);
    for (size_t i = 0; i < streams.size(); ++i) tokens[i] += Read(*streams[i])[0].ids.size();
    // One after the other: the first is there when half is done.
    EXPECT_EQ(scheduler.state().prefilling, turn < 31 ? 2 : turn < 63 ? 1 : 0) << turn;
  }
  EXPECT_EQ(backend.most_between_steps, 32);
  // A token each in nearly every step, which goes through all R recurrences at once.
  EXPECT_GE(*std::min_element(tokens.begin(), tokens.end()), 60u);
  EXPECT_EQ(*std::min_element(tokens.begin(), tokens.end()),
            *std::max_element(tokens.begin(), tokens.end()));
  while (scheduler.Step()) {
  }
  EXPECT_EQ(Read(*first)[0].ids.size(), 1u);
  EXPECT_EQ(Read(*second)[0].ids.size(), 1u);
  ExpectNothingHeld(scheduler);
}

// A device that prefers steps to prompts does not keep a new request from its first token.
TEST(Scheduler, PromptsAreWaitedForAfterOneStep) {
  FakeModel model(6, FakeShape::kNear, kRecurrence);
  WatchedBackend backend(model, 32, 4096);
  backend.starved = true;
  Scheduler scheduler(backend);
  ResolvedRequest request = Plain(20, 400, 1);
  request.depths = {};
  const auto first = scheduler.Submit(request);
  for (int i = 0; i < 8; ++i) scheduler.Step();
  const size_t before = Read(*first)[0].ids.size();
  ASSERT_GT(before, 0u);
  request.prompt = Tokens(60, 2);  // two chunks
  const auto second = scheduler.Submit(request);
  size_t turns = 0;
  while (Read(*second)[0].ids.empty() && turns < 100) {
    scheduler.Step();
    ++turns;
  }
  EXPECT_LE(turns, 3u * kRecurrence + 4);
  EXPECT_GT(Read(*first)[0].ids.size(), 0u);  // which went on meanwhile
}

TEST(Scheduler, SpeculationFadesUnderLoadAndComesBack) {
  FakeModel model(6, FakeShape::kEqual, kRecurrence);
  WatchedBackend backend(model, 64, 64 * 200);
  SchedulerOptions options;
  options.max_rows = 8;
  Scheduler scheduler(backend, options);
  struct Seen {
    int64_t steps = 0, drafted = 0;  // drafted: tokens that were
    bool operator==(const Seen&) const = default;
  };
  const auto run = [&](uint32_t streams, float temperature) {
    const int64_t steps = scheduler.state().steps;
    std::vector<std::shared_ptr<TokenStream>> all;
    const auto request = [&](uint32_t i) {
      ResolvedRequest made = Plain(3, 100, i);
      made.sampling.temperature = temperature;
      return made;
    };
    for (uint32_t i = 0; i < streams; ++i) all.push_back(scheduler.Submit(request(i)));
    backend.most_rows = 0;
    while (scheduler.Step()) {
    }
    EXPECT_LE(backend.most_rows, std::max(8, static_cast<int>(streams)));
    Seen seen{scheduler.state().steps - steps, 0};
    for (uint32_t i = 0; i < streams; ++i) {
      const Outcome outcome = Read(*all[i])[0];
      EXPECT_EQ(outcome.ids, Alone(model, request(i)));
      for (const int64_t accepted : outcome.result.accepted) seen.drafted += accepted;
    }
    return seen;
  };
  const Seen alone = run(1, 0.0f);
  EXPECT_LE(alone.steps, 110);  // every draft is right: a token a step
  EXPECT_GE(alone.drafted, 95);
  // A row each: drafts would gain nothing. They are left out, and a token is a step of R.
  const Seen loaded = run(16, 0.0f);
  EXPECT_LE(loaded.steps, 200);
  EXPECT_LE(loaded.drafted, 16 * 20);
  // Where the text is drawn from drafts they stay, and a token is a step for each depth of theirs
  // and the last.
  const Seen cascade = run(16, 1.0f);
  EXPECT_GE(cascade.steps, 290);
  EXPECT_LE(cascade.steps, 360);
  EXPECT_GE(cascade.drafted, 16 * 90);
  EXPECT_EQ(run(1, 0.0f), alone);  // and back
}

// Greedy requests leave their drafts out at a load at which rows are dear, and make them again when
// it falls: the text is the same throughout.
TEST(Scheduler, DraftsComeBackWhenTheLoadFalls) {
  FakeModel model(6, FakeShape::kNear, kRecurrence);
  WatchedBackend backend(model, 64, 64 * 200);
  SchedulerOptions options;
  options.cost = RowsCost();
  Scheduler scheduler(backend, options);
  std::vector<std::shared_ptr<TokenStream>> streams;
  const auto request = [](uint32_t i) { return Plain(3, 40 + 40 * static_cast<int>(i), i); };
  for (uint32_t i = 0; i < 12; ++i) streams.push_back(scheduler.Submit(request(i)));
  while (scheduler.Step()) {
  }
  std::vector<int64_t> drafted;
  for (uint32_t i = 0; i < 12; ++i) {
    const Outcome outcome = Read(*streams[i])[0];
    EXPECT_EQ(outcome.ids, Alone(model, request(i))) << i;
    drafted.push_back(outcome.result.accepted[0]);
  }
  // The last runs alone for a while, the first never did.
  EXPECT_LE(drafted[0], 10);
  EXPECT_GE(drafted[11], 100);
}

// Drafts of others make the steps long that a first token waits for: until it is there few advance.
TEST(Scheduler, FewDraftsAdvanceWhileAFirstTokenIsAwaited) {
  FakeModel model(6, FakeShape::kEqual, kRecurrence);
  WatchedBackend backend(model, 64, 64 * 200);
  SchedulerOptions options;
  options.cost.recurrence = {1, 1, 1, 1.5, 3, 6, 12, 24, 48};  // six rows cost a quarter more
  Scheduler scheduler(backend, options);
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (uint32_t i = 0; i < 2; ++i) streams.push_back(scheduler.Submit(Plain(2, 400, i)));
  const auto rows_of = [&](int turns) {
    backend.most_rows = 0;
    for (int turn = 0; turn < turns; ++turn) scheduler.Step();
    return backend.most_rows;
  };
  rows_of(10);
  EXPECT_EQ(rows_of(10), 8);  // every draft is right: four rows each
  streams.push_back(scheduler.Submit(Plain(2, 400, 2)));
  std::vector<int32_t> first;
  for (int turn = 0; first.empty(); ++turn) {
    ASSERT_LT(turn, kRecurrence + 2);
    EXPECT_LE(rows_of(1), 6);
    first = Read(*streams[2])[0].ids;
  }
  rows_of(10);
  EXPECT_GT(rows_of(10), 6);
}

// Streams whose drafts hold get a token in less than R recurrences, and then it is a prompt's turn.
TEST(Scheduler, PromptsDoNotWaitForMoreThanATokenOfEachStream) {
  FakeModel model(6, FakeShape::kEqual, kRecurrence);
  WatchedBackend backend(model, 64, 64 * 200);
  Scheduler scheduler(backend);
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (uint32_t i = 0; i < 4; ++i) streams.push_back(scheduler.Submit(Plain(2, 400, i)));
  while (scheduler.state().decoding < 4) scheduler.Step();
  for (int turn = 0; turn < 10; ++turn) scheduler.Step();  // until drafts are accepted in every one
  for (auto& stream : streams) Read(*stream);
  constexpr int kChunks = 16;
  const auto prompt = scheduler.Submit(Plain(32 * kChunks + 1, 1, 100));
  const int before = backend.prefilled;
  int turns = 0;
  for (; backend.prefilled - before < 32 * kChunks; ++turns) {
    ASSERT_LT(turns, 10 * kChunks);
    scheduler.Step();
  }
  EXPECT_LE(turns, 2 * kChunks);  // a token takes one or two steps, all R recurrences four
  size_t tokens = 0;
  for (auto& stream : streams) tokens += Read(*stream)[0].ids.size();
  EXPECT_GE(tokens, 4u * (kChunks - 1));
}

// Short prompts that keep coming, one in every step, go first at most in turn: a long one gets
// every other chunk.
TEST(Scheduler, ShortPromptsDoNotStarveALongOne) {
  FakeModel model(6, FakeShape::kNear, kRecurrence);
  WatchedBackend backend(model, 64, 64 * 200);
  SchedulerOptions options;
  options.max_running = 32;
  options.first_tokens = 0;
  Scheduler scheduler(backend, options);
  constexpr int kChunks = 20;
  const auto longest = scheduler.Submit(Plain(32 * kChunks + 1, 1, 100));
  std::vector<std::shared_ptr<TokenStream>> others;
  int turns = 0;
  for (; Read(*longest)[0].ids.empty(); ++turns) {
    ASSERT_LT(turns, 6 * kChunks);
    others.push_back(scheduler.Submit(Plain(30, 1, 201 + turns)));
    scheduler.Step();
  }
  EXPECT_GE(turns, kChunks);
  // And a short one is never behind the whole of the long one.
  EXPECT_EQ(Read(*others[0])[0].ids.size(), 1u);
  while (scheduler.Step()) {
  }
}

// Prompts that begin alike and come together: what one has prefilled the next does not again.
TEST(Scheduler, PromptsThatComeTogetherShareTheirBeginning) {
  for (const bool slow : {false, true}) {
    FakeModel model(3, FakeShape::kNear, kRecurrence);
    WatchedBackend backend(model, 64, 64 * 100);
    backend.equal = false;
    backend.slow = slow;
    SchedulerOptions options;
    options.prefill_chunk = kPageSize;
    Scheduler scheduler(backend, options);
    const auto request = [](uint32_t i) {
      ResolvedRequest made = Plain(20, 10, i);
      const std::vector<int32_t> shared = Tokens(64 * 4, 9);
      made.prompt.insert(made.prompt.begin(), shared.begin(), shared.end());
      return made;
    };
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (uint32_t i = 0; i < 8; ++i) streams.push_back(scheduler.Submit(request(i)));
    while (scheduler.Step()) {
    }
    int64_t cached = 0;
    for (uint32_t i = 0; i < 8; ++i) {
      const Outcome outcome = Read(*streams[i])[0];
      EXPECT_EQ(outcome.ids, Alone(model, request(i))) << i;
      cached += outcome.result.cached_tokens;
    }
    EXPECT_EQ(cached, scheduler.state().cached_tokens);
    EXPECT_EQ(backend.prefilled + cached, 8 * (64 * 4 + 19));
    EXPECT_EQ(cached, 7 * 64 * 4);
    ExpectNothingHeld(scheduler);
  }
}

TEST(Scheduler, AFailedStepAnswersItsRequestsAndTheEngineLivesOn) {
  FakeModel model(7, FakeShape::kNear, kRecurrence);
  WatchedBackend backend(model, 64, 64 * 100);
  SchedulerOptions options;
  options.max_running = 2;
  Scheduler scheduler(backend, options);
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (uint32_t i = 0; i < 4; ++i) streams.push_back(scheduler.Submit(Plain(10, 50, i)));
  backend.fail_step = 20;
  while (scheduler.Step()) {
  }
  for (uint32_t i = 0; i < 4; ++i) {
    const Outcome outcome = Read(*streams[i])[0];
    std::vector<int32_t> alone = Alone(model, Plain(10, 50, i));
    if (i < 2) {
      EXPECT_EQ(outcome.result.finish_reason, FinishReason::kError);
      EXPECT_EQ(outcome.result.error, "the device went wrong");
      ASSERT_LT(outcome.ids.size(), alone.size());
      alone.resize(outcome.ids.size());
    } else {
      EXPECT_EQ(outcome.result.finish_reason, FinishReason::kLength);
    }
    EXPECT_EQ(outcome.ids, alone);
  }
  ExpectNothingHeld(scheduler);

  // A prompt that fails takes nobody along.
  const auto running = scheduler.Submit(Plain(10, 50, 10));
  scheduler.Step();
  const auto failing = scheduler.Submit(Plain(100, 50, 11));
  backend.fail_prefill = 1;
  while (scheduler.Step()) {
  }
  EXPECT_EQ(Read(*failing)[0].result.error, "the prompt went wrong");
  EXPECT_EQ(Read(*running)[0].ids, Alone(model, Plain(10, 50, 10)));
  ExpectNothingHeld(scheduler);
}

TEST(Scheduler, AReadersOwnMistakeHurtsNobody) {
  FakeModel model(7, FakeShape::kNear, kRecurrence);
  WatchedBackend backend(model, 64, 64 * 100);
  Scheduler scheduler(backend);
  const auto first = scheduler.Submit(Plain(10, 50, 1));
  const auto second = scheduler.Submit(Plain(10, 50, 2));
  int called = 0;
  first->OnReady([&] {
    ++called;
    throw Error("no");
  });
  while (scheduler.Step()) {
  }
  EXPECT_EQ(called, 51);
  EXPECT_EQ(Read(*first)[0].ids, Alone(model, Plain(10, 50, 1)));
  EXPECT_EQ(Read(*second)[0].ids, Alone(model, Plain(10, 50, 2)));
}

TEST(Scheduler, CancellationFreesEverythingWithinATurn) {
  FakeModel model(8, FakeShape::kNear, kRecurrence);
  WatchedBackend backend(model, 64, 64 * 20);
  SchedulerOptions options;
  options.max_running = 2;
  options.cache_bytes = 0;
  Scheduler scheduler(backend, options);
  for (int turns = 0; turns < 60; ++turns) {
    const auto prefilled = scheduler.Submit(Plain(500, 50, 1));
    const auto decoded = scheduler.Submit(Plain(10, 50, 2));
    const auto queued = scheduler.Submit(Plain(10, 50, 3));
    for (int i = 0; i < turns; ++i) scheduler.Step();
    for (const auto& stream : {prefilled, decoded, queued}) stream->Cancel();
    scheduler.Step();
    ExpectNothingHeld(scheduler);
    EXPECT_EQ(scheduler.state().pages_free, 20);
    for (const auto& stream : {prefilled, decoded, queued}) {
      const FinishReason reason = Read(*stream)[0].result.finish_reason;
      EXPECT_TRUE(reason == FinishReason::kCancelled || reason == FinishReason::kLength);
      stream->Cancel();  // harmless
    }
  }
}

// What a step prefills or preempts changes who is in from the next step on: here the second choice
// shares a prompt that is written in the first step.
TEST(Scheduler, AdmissionComesFirstInAStep) {
  FakeModel model(8, FakeShape::kNear, kRecurrence);
  WatchedBackend backend(model, 64, 64 * 20);
  Scheduler scheduler(backend);
  const auto stream = scheduler.Submit(Choices(Plain(20, 50, 1), 2));
  scheduler.Step();
  EXPECT_EQ(scheduler.state().decoding, 1);
  EXPECT_EQ(scheduler.state().waiting, 1);
  scheduler.Step();
  EXPECT_EQ(scheduler.state().decoding, 2);
  EXPECT_EQ(scheduler.state().waiting, 0);
  while (scheduler.Step()) {
  }
  ExpectNothingHeld(scheduler);
}

// Of choices whose prompt was known when they were admitted too: the second shares the first one's.
TEST(Scheduler, TheClockOfDecodingStartsAfterTheQueue) {
  FakeModel model(8, FakeShape::kNear, kRecurrence);
  WatchedBackend backend(model, 64, 64 * 20);
  Scheduler scheduler(backend);
  const Timer since_submission;
  const auto stream = scheduler.Submit(Choices(Plain(300, 20, 1), 2));
  while (scheduler.Step()) {
  }
  const double elapsed = since_submission.Seconds();
  for (const Outcome& outcome : Read(*stream)) {
    EXPECT_LE(outcome.result.queue_seconds + outcome.result.decode_seconds, elapsed);
  }
}

TEST(Scheduler, CancelsAPreemptedRequest) {
  FakeModel model(8, FakeShape::kNear, kRecurrence);
  WatchedBackend backend(model, 64, 64 * 5);
  Scheduler scheduler(backend);
  const auto older = scheduler.Submit(Plain(60, 250, 1));
  const auto younger = scheduler.Submit(Plain(60, 250, 2));
  while (scheduler.state().preempted == 0) ASSERT_TRUE(scheduler.Step());
  younger->Cancel();
  scheduler.Step();
  EXPECT_EQ(scheduler.state().preempted, 0);
  EXPECT_EQ(Read(*younger)[0].result.finish_reason, FinishReason::kCancelled);
  while (scheduler.Step()) {
  }
  EXPECT_EQ(Read(*older)[0].ids, Alone(model, Plain(60, 250, 1)));
  ExpectNothingHeld(scheduler);
}

TEST(Scheduler, RefusesWhatItCannotServeAndSaysWhenItIsFull) {
  FakeModel model(1, FakeShape::kNear, kRecurrence);
  WatchedBackend backend(model, 16, 64 * 4);
  SchedulerOptions options;
  options.max_queued = 3;
  Scheduler scheduler(backend, options);
  const auto refusal = [&](const ResolvedRequest& request) -> std::string {
    try {
      scheduler.Submit(request);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(refusal({}).find("prompt is empty"), std::string::npos);
  EXPECT_NE(refusal(Plain(10, -1, 1)).find("max_tokens"), std::string::npos);
  EXPECT_EQ(refusal(Plain(200, 57, 1)),
            "a prompt of 200 tokens and 57 new ones make 257 positions, the key/value memory holds "
            "256");
  EXPECT_NE(refusal(Choices(Plain(10, 10, 1), 0)).find("n is 0"), std::string::npos);
  ResolvedRequest wrong = Plain(10, 10, 1);
  wrong.prompt[3] = kFakeVocab;
  EXPECT_NE(refusal(wrong).find("token 5"), std::string::npos);

  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 3; ++i) streams.push_back(scheduler.Submit(Plain(200, 56, 1)));
  EXPECT_THROW(scheduler.Submit(Plain(10, 10, 1)), QueueFull);
  EXPECT_EQ(scheduler.state().waiting, 3);
  scheduler.Step();
  EXPECT_EQ(scheduler.state().waiting, 2);
  streams.push_back(scheduler.Submit(Plain(10, 10, 1)));
  EXPECT_THROW(scheduler.Submit(Choices(Plain(10, 10, 1), 2)), QueueFull);
  EXPECT_EQ(refusal(Choices(Plain(10, 10, 1), 1 << 30)), "n is 1073741824, expected 1 to 3");
  while (scheduler.Step()) {
  }
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(Read(*streams[static_cast<size_t>(i)])[0].ids, Alone(model, Plain(200, 56, 1)));
  ExpectNothingHeld(scheduler);
}

// A prompt that is only scored may fill the memory and the context to the last position; nothing
// follows it.
TEST(Scheduler, ScoresAPromptThatFillsTheMemory) {
  FakeModel model(1, FakeShape::kNear, kRecurrence);
  WatchedBackend backend(model, 16, 64 * 4);
  Scheduler scheduler(backend);
  EXPECT_THROW(scheduler.Submit(Scored(Plain(257, 0, 1), 0)), Error);
  std::vector<std::shared_ptr<TokenStream>> streams;
  streams.push_back(scheduler.Submit(Scored(Plain(256, 0, 1), 0)));
  streams.push_back(scheduler.Submit(Scored(Plain(1, 0, 2), 2)));
  streams.push_back(scheduler.Submit(Plain(255, 1, 3)));
  streams.push_back(scheduler.Submit(Scored(Choices(Plain(200, 0, 4), 3), 1)));
  while (scheduler.Step()) {
  }
  for (size_t i = 0; i < streams.size(); ++i) {
    for (const Outcome& outcome : Read(*streams[i])) {
      EXPECT_EQ(outcome.result.finish_reason, FinishReason::kLength) << outcome.result.error;
      EXPECT_EQ(outcome.ids.size(), i == 2 ? 1u : 0u);
    }
  }
  EXPECT_EQ(streams[0]->prompt_logprobs().size(), 255u);
  EXPECT_EQ(streams[1]->prompt_logprobs().size(), 0u);
  ExpectNothingHeld(scheduler);
}

TEST(Scheduler, ChoicesShareTheirPromptsPages) {
  FakeModel model(3, FakeShape::kNear, kRecurrence);
  WatchedBackend backend(model, 64, 64 * 40);
  SchedulerOptions options;
  options.cache_bytes = 0;
  Scheduler scheduler(backend, options);
  ResolvedRequest request = Plain(64 * 6 + 21, 30, 4);
  request.sampling.temperature = 1.0f;
  request.seed = 11;
  const auto stream = scheduler.Submit(Choices(request, 4));
  while (scheduler.state().decoding < 4) ASSERT_TRUE(scheduler.Step());
  // Six shared pages, and one or two of each choice's own.
  EXPECT_GE(scheduler.state().pages_free, 40 - 6 - 8);
  EXPECT_EQ(backend.prefilled, 64 * 6 + 20);
  while (scheduler.Step()) {
  }
  const std::vector<Outcome> outcomes = Read(*stream);
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(outcomes[i].ids, Alone(model, request, static_cast<int>(i))) << i;
  }
  EXPECT_NE(outcomes[0].ids, outcomes[1].ids);
  EXPECT_EQ(scheduler.state().pages_free, 40);

  // When the first is cancelled with its stream, nothing of the others is left either.
  const auto cancelled = scheduler.Submit(Choices(request, 4));
  scheduler.Step();
  cancelled->Cancel();
  scheduler.Step();
  ExpectNothingHeld(scheduler);
}

// The rule of the prefix cache: pages that steps wrote are for others only where prefill would have
// written the same.
// More choices than the memory has pages: they take turns.
TEST(Scheduler, ManyChoicesInLittleMemory) {
  FakeModel model(1, FakeShape::kNear, kRecurrence);
  WatchedBackend backend(model, 256, 64 * 4);
  Scheduler scheduler(backend);
  ResolvedRequest request = Plain(100, 3, 1);
  request.sampling.temperature = 0.9f;
  const auto stream = scheduler.Submit(Choices(request, 64));
  int turns = 0;
  while (scheduler.Step()) ASSERT_LT(++turns, 64 * 3 * kRecurrence);
  const std::vector<Outcome> outcomes = Read(*stream);
  for (uint32_t i = 0; i < 64; ++i) {
    EXPECT_EQ(outcomes[i].ids, Alone(model, request, static_cast<int>(i))) << i;
    EXPECT_EQ(outcomes[i].result.finish_reason, FinishReason::kLength);
  }
  ExpectNothingHeld(scheduler);
}

TEST(Scheduler, ConversationsReuseWhatTheBackendAllows) {
  for (const bool equal : {true, false}) {
    FakeModel model(3, FakeShape::kNear, kRecurrence);
    WatchedBackend backend(model, 64, 64 * 40);
    backend.equal = equal;
    Scheduler scheduler(backend);
    ResolvedRequest request = Plain(101, 200, 4);
    const auto first = scheduler.Submit(request);
    while (scheduler.Step()) {
    }
    const std::vector<int32_t> answer = Read(*first)[0].ids;
    ASSERT_EQ(answer.size(), 200u);
    request.prompt.insert(request.prompt.end(), answer.begin(), answer.end());
    request.prompt.push_back(1);
    const auto second = scheduler.Submit(request);
    while (scheduler.Step()) {
    }
    const Outcome outcome = Read(*second)[0];
    // 301 tokens and a question: of these 299 are committed, four pages; the prompt filled one.
    EXPECT_EQ(outcome.result.cached_tokens, equal ? 256 : 64);
    EXPECT_EQ(outcome.ids, Alone(model, request));
    // The whole prompt again: its last token is never taken from the cache.
    ResolvedRequest again = Plain(129, 20, 6);
    for (const int64_t cached : {0, 128}) {
      const auto stream = scheduler.Submit(again);
      while (scheduler.Step()) {
      }
      EXPECT_EQ(Read(*stream)[0].result.cached_tokens, cached);
    }
    again.prompt.pop_back();
    const auto shorter = scheduler.Submit(again);
    while (scheduler.Step()) {
    }
    EXPECT_EQ(Read(*shorter)[0].result.cached_tokens, 64);
  }
}

// Readers and submitters in threads of their own; the scheduler in its own.
TEST(Scheduler, ManyThreads) {
  FakeModel model(2, FakeShape::kNear, kRecurrence);
  WatchedBackend backend(model, 128, 64 * 40);
  std::map<uint32_t, std::vector<int32_t>> alone;
  for (uint32_t i = 0; i < 32; ++i) alone[i] = Alone(model, Mixed(i));
  std::atomic<int> wrong{0}, full{0}, notified{0};
  std::shared_ptr<TokenStream> left;
  {
    SchedulerOptions options;
    options.max_queued = 6;
    Scheduler scheduler(backend, options);
    scheduler.Start();
    std::vector<std::thread> clients;
    for (uint32_t client = 0; client < 8; ++client) {
      clients.emplace_back([&, client] {
        for (uint32_t i = client; i < 32; i += 8) {
          std::shared_ptr<TokenStream> stream;
          for (int tries = 0; !stream && tries < 100000; ++tries) {
            try {
              stream = scheduler.Submit(Mixed(i));
            } catch (const QueueFull&) {
              ++full;
              std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
          }
          if (i % 3 == 0) stream->OnReady([&] { ++notified; });
          std::vector<int32_t> ids;
          StreamEvent event;
          while (IsEvent(stream->Next(event))) {
            if (event.status == Stream::Status::kToken) ids.push_back(event.token.id);
            if (i % 7 == 3 && ids.size() == 3) stream->Cancel();
          }
          std::vector<int32_t> expected = alone.at(i);
          if (stream->statistics(0).finish_reason == FinishReason::kCancelled)
            expected.resize(std::min(expected.size(), ids.size()));
          wrong += ids == expected ? 0 : 1;
          (void)scheduler.state();
        }
      });
    }
    for (std::thread& client : clients) client.join();
    left = scheduler.Submit(Plain(100, 1000, 1));
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(notified, 0);
  // A stream outlives its engine, and is told.
  StreamEvent event;
  while (IsEvent(left->Next(event))) {
  }
  EXPECT_EQ(left->statistics(0).finish_reason, FinishReason::kCancelled);
  left->Cancel();
}

// ---- Fairness ----

// Of many equal prompts the first is there after its own time, not after that of all.
TEST(Scheduler, EqualPromptsEndOneAfterTheOther) {
  FakeModel model(6, FakeShape::kNear, kRecurrence);
  WatchedBackend backend(model, 256, 64 * 300);
  SchedulerOptions options;
  options.first_tokens = 0;
  Scheduler scheduler(backend, options);
  constexpr int kPrompts = 16, kChunks = 10;
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (uint32_t i = 0; i < kPrompts; ++i)
    streams.push_back(scheduler.Submit(Plain(32 * kChunks + 1, 1, i)));
  std::vector<int> ended(kPrompts, -1);
  int turns = 0;
  for (; scheduler.Step(); ++turns) {
    ASSERT_LT(turns, 10000);
    for (size_t i = 0; i < streams.size(); ++i) {
      if (ended[i] < 0 && Read(*streams[i])[0].result.finish_reason != FinishReason::kNone)
        ended[i] = turns;
    }
  }
  EXPECT_TRUE(std::is_sorted(ended.begin(), ended.end()));
  EXPECT_LE(ended[0], kChunks * 3 / 2);
  EXPECT_LE(turns, kPrompts * kChunks + 4 * kPrompts);  // all of them take no longer
}

// A request for one token behind a batch of long ones: it takes a place, nobody's text changes, and
// the batch takes a few steps more.
TEST(Scheduler, AShortRequestDoesNotWaitForABatch) {
  FakeModel model(6, FakeShape::kNear, kRecurrence);
  const auto batch = [](uint32_t i) {
    ResolvedRequest request = Plain(40, 300, i);
    request.depths = {};
    return request;
  };
  int64_t alone = 0;
  for (const bool beside : {false, true}) {
    WatchedBackend backend(model, 256, 64 * 300);
    SchedulerOptions options;
    options.max_running = 8;
    options.short_wait = 0;
    Scheduler scheduler(backend, options);
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (uint32_t i = 0; i < 16; ++i) streams.push_back(scheduler.Submit(batch(i)));
    while (scheduler.state().decoding < 8) scheduler.Step();
    if (beside) {
      const auto brief = scheduler.Submit(Plain(3, 1, 99));
      int turns = 0;
      for (; Read(*brief)[0].ids.empty() && turns < 1000; ++turns) scheduler.Step();
      EXPECT_LE(turns, 2 * kRecurrence);
      EXPECT_EQ(scheduler.state().preemptions, 1);
    }
    while (scheduler.Step()) {
    }
    for (uint32_t i = 0; i < 16; ++i) {
      const Outcome outcome = Read(*streams[i])[0];
      EXPECT_EQ(outcome.ids, Alone(model, batch(i))) << "request " << i;
    }
    if (!beside) alone = scheduler.state().steps;
    EXPECT_LE(scheduler.state().steps, alone + alone / 20);
    ExpectNothingHeld(scheduler);
  }
}

// Shares divide places and prompts by weight, however much each asks for.
TEST(Scheduler, SharesGetTheirPart) {
  FakeModel model(6, FakeShape::kNear, kRecurrence);
  WatchedBackend backend(model, 256, 64 * 300);
  SchedulerOptions options;
  options.max_running = 8;
  options.first_tokens = 0;
  options.short_wait = INFINITY;
  Scheduler scheduler(backend, options);
  const auto request = [](uint32_t i) {
    ResolvedRequest made = Plain(40, 200, i);
    made.depths = {};
    return made;
  };
  std::vector<std::shared_ptr<TokenStream>> greedy, modest;
  for (uint32_t i = 0; i < 32; ++i) greedy.push_back(scheduler.Submit(OfTenant(request(i), 1)));
  while (scheduler.state().decoding < 8) scheduler.Step();
  for (uint32_t i = 0; i < 6; ++i)
    modest.push_back(scheduler.Submit(OfTenant(request(100 + i), 2, 1)));
  scheduler.Step();
  EXPECT_EQ(scheduler.state().preemptions, 4);  // half of the places
  size_t ended_before = 0;                      // of the greedy, when the modest have all
  for (size_t done = 0; done < modest.size();) {
    scheduler.Step();
    done = 0;
    for (auto& stream : modest) {
      StreamEvent event;
      while (IsEvent(stream->Next(event, std::chrono::milliseconds(0)))) {
      }
      if (stream->statistics(0).finish_reason != FinishReason::kNone) ++done;
    }
  }
  for (auto& stream : greedy)
    ended_before += stream->statistics(0).finish_reason != FinishReason::kNone ? 1 : 0;
  EXPECT_LE(ended_before, 12u);
  while (scheduler.Step()) {
  }
  for (uint32_t i = 0; i < 32; ++i)
    EXPECT_EQ(Read(*greedy[i])[0].ids, Alone(model, request(i))) << "request " << i;
  ExpectNothingHeld(scheduler);

  // Prompts of one that weighs three times as much come on three times as fast.
  const auto light = scheduler.Submit(OfTenant(Plain(32 * 30 + 1, 1, 1), 1));
  const auto heavy = scheduler.Submit(OfTenant(Plain(32 * 30 + 1, 1, 2), 2, 3));
  int turns = 0;
  for (; Read(*heavy)[0].ids.empty(); ++turns) scheduler.Step();
  EXPECT_NEAR(turns, 40, 4);
  while (scheduler.Step()) {
  }
  EXPECT_EQ(Read(*light)[0].ids.size(), 1u);
}

// What no reader has taken is counted, and nothing is left of it when it is read or dropped.
TEST(Scheduler, CountsWhatWaitsForReaders) {
  FakeModel model(6, FakeShape::kNear, kRecurrence);
  WatchedBackend backend(model, 64, 64 * 200);
  Scheduler scheduler(backend);
  auto read = scheduler.Submit(Plain(3, 100, 1));
  auto dropped = scheduler.Submit(Plain(3, 100, 2));
  EXPECT_EQ(scheduler.state().unread_bytes, 0);
  while (scheduler.Step()) {
  }
  const int64_t both = scheduler.state().unread_bytes;
  EXPECT_GT(both, 200 * static_cast<int64_t>(sizeof(Token)));
  Read(*read);
  EXPECT_EQ(scheduler.state().unread_bytes, both / 2);
  dropped.reset();
  EXPECT_EQ(scheduler.state().unread_bytes, 0);
  EXPECT_EQ(scheduler.state().page_bytes, backend.page_bytes());
}

// Tokens that each share gets in so many steps.
std::map<uint64_t, int64_t> TokensByShare(
    Scheduler& scheduler, const std::map<uint64_t, std::vector<std::shared_ptr<TokenStream>>>& of,
    int steps) {
  std::map<uint64_t, int64_t> tokens;
  for (int step = 0; step < steps; ++step) {
    scheduler.Step();
    for (const auto& [share, streams] : of) {
      for (const auto& stream : streams) {
        StreamEvent event;
        while (IsEvent(stream->Next(event, std::chrono::milliseconds(0))))
          tokens[share] += event.status == Stream::Status::kToken ? 1 : 0;
      }
    }
  }
  return tokens;
}

// Shares divide the tokens by weight, however many answers each has, with drafts and without.
TEST(Scheduler, SharesDivideTheTokens) {
  struct Case {
    int mine, others;  // answers
    double weight;     // of the others
  };
  for (const std::vector<int>& depths : {std::vector<int>{}, std::vector<int>{1, 2}}) {
    for (const Case c : {Case{1, 31, 1}, Case{4, 28, 1}, Case{16, 16, 3}, Case{24, 8, 3}}) {
      FakeModel model(6, FakeShape::kNear, kRecurrence);
      WatchedBackend backend(model, 256, 64 * 600);
      SchedulerOptions options;
      options.max_running = 32;
      options.first_tokens = 0;
      options.short_wait = INFINITY;
      options.cost = RowsCost();
      // Every row costs as much as every other: nothing is to be lent.
      for (size_t i = 0; i < StepCost::kRows.size(); ++i)
        options.cost.recurrence[i] = StepCost::kRows[i];
      Scheduler scheduler(backend, options);
      std::map<uint64_t, std::vector<std::shared_ptr<TokenStream>>> streams;
      const auto request = [&](uint32_t i) {
        ResolvedRequest made = Plain(10, 900, i);
        made.depths = depths;
        return made;
      };
      uint32_t i = 0;
      for (; i < static_cast<uint32_t>(c.others); ++i)
        streams[2].push_back(scheduler.Submit(OfTenant(request(i), 2, c.weight)));
      TokensByShare(scheduler, streams, 40);
      for (; i < static_cast<uint32_t>(c.others + c.mine); ++i)
        streams[1].push_back(scheduler.Submit(OfTenant(request(i), 1)));
      TokensByShare(scheduler, streams, 100);  // the prompts
      auto tokens = TokensByShare(scheduler, streams, 300);
      EXPECT_GT(tokens[1], 100);
      EXPECT_NEAR(static_cast<double>(tokens[2]) / static_cast<double>(tokens[1]), c.weight,
                  c.weight / 20)
          << c.mine << " beside " << c.others << ", " << depths.size() << " proposals";
    }
  }
}

// Thousands of preemptions, for both reasons that there are. Two tenants' long answers hold all
// places, and a third's short ones, of which one is always there, take a place each time; with few
// pages, prompts that fit and answers that do not preempt each other besides. Every long answer is
// swapped out and resumed hundreds of times, at any depth of its branches.
TEST(Scheduler, ThousandsOfPreemptionsChangeNoText) {
  struct Case {
    int positions, places;
    uint32_t longs;   // answers
    int preemptions;  // at least
  };
  for (const Case& c : {Case{64 * 200, 4, 36, 1500}, Case{64 * 14, 4, 48, 1500}}) {
    FakeModel model(5, FakeShape::kNear, kRecurrence);
    WatchedBackend backend(model, 48, c.positions);
    SchedulerOptions options;
    options.max_running = c.places;
    options.first_tokens = 0;
    options.short_wait = INFINITY;  // what goes by time is left out
    Scheduler scheduler(backend, options);
    const auto long_request = [](uint32_t i) {
      ResolvedRequest request = Mixed(i);
      request.stop_tokens.clear();
      request.prompt = Tokens(30 + i % 34, i);
      request.max_tokens = 380 - static_cast<int>(i % 7);
      return OfTenant(std::move(request), 1 + i % 2);
    };
    const auto short_request = [](uint32_t i) {
      ResolvedRequest request = Mixed(1000 + i % 50);
      request.prompt = Tokens(5 + i % 3, i % 50);
      request.max_tokens = 1;
      request.priority = static_cast<int>(i % 3);
      return OfTenant(std::move(request), 3);
    };
    std::vector<std::shared_ptr<TokenStream>> longs;
    for (uint32_t i = 0; i < c.longs; ++i) longs.push_back(scheduler.Submit(long_request(i)));
    std::shared_ptr<TokenStream> current;  // the short one that is there
    std::vector<Outcome> brief;            // short ones, the current one last
    int turns = 0, gap = 0;
    for (bool busy = true; busy; ++turns) {
      ASSERT_LT(turns, 400000);
      const EngineMetrics state = scheduler.state();
      // One turn later, so that the place has been taken again.
      if (current == nullptr && state.prefilling + state.decoding > 0 && ++gap > 1) {
        current = scheduler.Submit(short_request(static_cast<uint32_t>(brief.size())));
        brief.emplace_back();
      }
      busy = scheduler.Step();
      StreamEvent event;
      while (current != nullptr && IsEvent(current->Next(event, std::chrono::milliseconds(0)))) {
        if (event.status == Stream::Status::kToken) brief.back().ids.push_back(event.token.id);
        if (event.status == Stream::Status::kEnd) {
          brief.back().result = current->statistics(0);
          current = nullptr;
          gap = 0;
        }
      }
    }
    int64_t times = 0;
    for (uint32_t i = 0; i < c.longs; ++i) {
      const Outcome outcome = Read(*longs[i])[0];
      EXPECT_EQ(outcome.result.error, "");
      ASSERT_EQ(outcome.ids, Alone(model, long_request(i))) << "long answer " << i;
      times += outcome.result.preemptions;
    }
    for (uint32_t i = 0; i < brief.size(); ++i) {
      ASSERT_EQ(brief[i].ids, Alone(model, short_request(i))) << "short answer " << i;
      times += brief[i].result.preemptions;
    }
    EXPECT_EQ(times, scheduler.state().preemptions);
    EXPECT_GE(times, c.preemptions) << turns << " turns, " << brief.size() << " short answers";
    RecordProperty("preemptions", std::to_string(times));
    ExpectNothingHeld(scheduler);
  }
}

// Requests of all kinds and of one to three choices, of three shares, that take each other's places
// all the time.
TEST(Scheduler, ReplacedAndResumedWithTheSameText) {
  FakeModel model(5, FakeShape::kNear, kRecurrence);
  for (const int positions : {64 * 300, 64 * 12}) {
    WatchedBackend backend(model, 64, positions);
    SchedulerOptions options;
    options.max_running = 9;
    options.short_wait = 0;
    options.cost = RowsCost();  // so that sequences wait for their turn
    Scheduler scheduler(backend, options);
    std::vector<std::shared_ptr<TokenStream>> streams;
    std::mt19937 random(3);
    bool busy = true;
    for (int turn = 0; busy || streams.size() < 60; ++turn) {
      ASSERT_LT(turn, 100000);
      if (streams.size() < 60 && random() % 3 == 0) {
        const auto i = static_cast<uint32_t>(streams.size());
        ResolvedRequest request =
            OfTenant(Choices(Mixed(i), 1 + static_cast<int>(i % 3)), i % 3, 1.0 + i % 3);
        request.priority = static_cast<int>(i % 2);
        streams.push_back(scheduler.Submit(std::move(request)));
      }
      busy = scheduler.Step();
    }
    EXPECT_GT(scheduler.state().preemptions, 0);
    for (uint32_t i = 0; i < 60; ++i) {
      const std::vector<Outcome> outcomes = Read(*streams[i]);
      ASSERT_EQ(outcomes.size(), 1 + i % 3);
      for (uint32_t choice = 0; choice < outcomes.size(); ++choice) {
        EXPECT_EQ(outcomes[choice].result.error, "");
        EXPECT_EQ(outcomes[choice].ids, Alone(model, Mixed(i), static_cast<int>(choice)))
            << "request " << i << ", " << choice;
      }
    }
    ExpectNothingHeld(scheduler);
  }
}

}  // namespace
}  // namespace loopspec

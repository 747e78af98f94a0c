// The engine as a busy server has it: many streams over the demo models that each get what they get
// alone, and thousands of requests after which nothing is held.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/schedule/scheduler.h"
#include "tests/support/counted_new.h"
#include "tests/support/driver.h"
#include "tests/support/models.h"
#include "tests/support/run_request.h"
#include "tests/support/sanitized.h"

namespace loopspec {
namespace {

BackendOptions Options(const Model& model, int64_t positions) {
  BackendOptions options;
  const int r = model.spec.recurrence;
  options.readout_depths = r == 4 ? std::vector{1, 2, 4} : std::vector{2, 8, r};
  options.cells = 256;
  options.threads = 1;  // tests share the machine with others
  options.kv_positions = positions;
  return options;
}

enum class How { kGreedy, kCoupled, kCascade };

// Lengths from a few tokens to hundreds; a third begin alike, some repeat others whole.
ResolvedRequest MakeRequest(const Model& model, const std::vector<std::vector<int32_t>>& prompts,
                            How how, uint32_t i, int longest) {
  std::mt19937 random(i % 40);
  ResolvedRequest request;
  request.prompt = prompts[random() % prompts.size()];
  if (random() % 3 == 0) {
    const std::vector<int32_t> before = RandomTokens(model.spec, 64 * (1 + random() % 3), 7);
    request.prompt.insert(request.prompt.begin(), before.begin(), before.end());
  }
  request.depths = model.spec.recurrence == 4 ? std::vector{1, 2} : std::vector{2, 8};
  request.guesses = true;
  request.group = 0;
  request.max_tokens = 1 + static_cast<int>(random() % static_cast<uint32_t>(longest));
  request.seed = random() % 100;
  if (how != How::kGreedy) request.sampling.temperature = 0.8f;
  if (how == How::kCoupled) request.sampling.sampler = Sampler::kCoupled;
  return request;
}

// Rows cost as they do on a machine with few cores, so that drafts come and go with the load.
StepCost FewCores() {
  StepCost cost;
  cost.recurrence = {1, 1.05, 1.2, 1.9, 3.8, 7.5, 16, 34, 68};
  cost.readout = 0.3;
  cost.readout_row = 0.05;
  return cost;
}

// `count` streams in a thread of the scheduler's own, started over time; every sixth is cancelled
// after a few tokens.
void ExactUnderLoad(const std::string& name, How how, uint32_t count, int longest) {
  const StreamModel loaded = LoadStreamModel(name);
  const Model& model = loaded.model;
  const auto& prompts = loaded.prompts;
  const auto alone_backend = MakeTestBackend(model, Options(model, 1024));
  const auto backend = MakeTestBackend(model, Options(model, 64 * 250));
  Scheduler alone(*alone_backend, OneAtATime());
  SchedulerOptions options;
  options.cost = FewCores();
  Scheduler scheduler(*backend, options);
  scheduler.Start();
  std::vector<std::vector<int32_t>> texts(count);
  std::vector<Statistics> results(count);
  std::vector<std::thread> clients;
  for (uint32_t client = 0; client < 8; ++client) {
    clients.emplace_back([&, client] {
      std::vector<uint32_t> mine;
      std::vector<std::shared_ptr<TokenStream>> streams;
      for (uint32_t i = client; i < count; i += 8) {
        mine.push_back(i);
        streams.push_back(scheduler.Submit(MakeRequest(model, prompts, how, i, longest)));
        std::this_thread::sleep_for(std::chrono::milliseconds(3 * client));
      }
      for (size_t s = 0; s < streams.size(); ++s) {
        StreamEvent event;
        std::vector<int32_t>& ids = texts[mine[s]];
        while (IsEvent(streams[s]->Next(event))) {
          if (event.status == Stream::Status::kToken) ids.push_back(event.token.id);
          if (mine[s] % 6 == 1 && ids.size() == 3) streams[s]->Cancel();
        }
        results[mine[s]] = streams[s]->statistics(0);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  int64_t cached = 0;
  for (uint32_t i = 0; i < count; ++i) {
    std::vector<int32_t> expected;
    for (const Token& token :
         RunRequest(alone, MakeRequest(model, prompts, how, i, longest)).tokens)
      expected.push_back(token.id);
    ASSERT_NE(results[i].finish_reason, FinishReason::kError) << results[i].error;
    if (results[i].finish_reason == FinishReason::kCancelled) {
      ASSERT_LE(texts[i].size(), expected.size());
      expected.resize(texts[i].size());
    }
    EXPECT_EQ(texts[i], expected) << name << ", request " << i;
    cached += results[i].cached_tokens;
  }
  EXPECT_GT(cached, 0);
}

// Under a sanitizer as many streams, with shorter texts.
constexpr int Shorter(int tokens) {
  return kSanitized ? tokens / 4 : tokens;
}

TEST(ExactUnderLoad, OuroGreedy) {
  ExactUnderLoad("ouro-demo", How::kGreedy, 16, Shorter(20));
}
TEST(ExactUnderLoad, OuroCoupled) {
  ExactUnderLoad("ouro-demo", How::kCoupled, 16, Shorter(16));
}
TEST(ExactUnderLoad, OuroCascade) {
  ExactUnderLoad("ouro-demo", How::kCascade, 16, Shorter(16));
}
TEST(ExactUnderLoad, RavenGreedy) {
  ExactUnderLoad("raven-demo", How::kGreedy, 12, Shorter(12));
}

class ExactUnderLoadLong : public testing::TestWithParam<std::tuple<const char*, How>> {};
TEST_P(ExactUnderLoadLong, SixtyFourStreams) {
  const auto [name, how] = GetParam();
  ExactUnderLoad(name, how, 64, 200);
}
INSTANTIATE_TEST_SUITE_P(DemoModels, ExactUnderLoadLong,
                         testing::Combine(testing::Values("ouro-demo", "raven-demo"),
                                          testing::Values(How::kGreedy, How::kCoupled,
                                                          How::kCascade)));

// ---- Nothing leaks ----

// A figure of /proc/self/status; 0 where there is none.
int64_t OfProcess(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::stoll(line.substr(key.size() + 1));
  }
  return 0;
}

int64_t Descriptors() {
  std::error_code error;
  const std::filesystem::directory_iterator folder("/proc/self/fd", error);
  return error ? 0 : std::distance(begin(folder), end(folder));
}

bool Busy(const EngineMetrics& state) {
  return state.waiting + state.prefilling + state.decoding + state.preempted > 0;
}

ResolvedRequest FillsAllPages(const Model& model, const Backend& backend) {
  ResolvedRequest request;
  request.prompt = RandomTokens(model.spec, static_cast<size_t>(64 * backend.pages() - 63), 11);
  request.max_tokens = 1;
  return request;
}

// What `rounds` rounds of requests left behind.
struct Left {
  std::vector<int64_t> held;  // bytes allocated and not freed when a round was over, by round
  int64_t after = 0;          // more than before when everything was gone
  EngineMetrics state;        // at the end
};

// `per_round` requests of all kinds over one scheduler, some at a time: one in ten is cancelled at
// a moment of its own, the streams of one in twenty are dropped unread, and pages are scarce. A
// round ends with a prompt that fills all pages, so that the prefix cache is the same after each.
// The test may put in a leak: `leak(request, stream)` is called for every request.
using LeakOne = std::function<void(int request, const std::shared_ptr<TokenStream>& stream)>;
Left RunRounds(const Model& model, const std::vector<std::vector<int32_t>>& prompts, int rounds,
               int per_round, const LeakOne& leak = {}) {
  Left left;
  left.held.reserve(static_cast<size_t>(rounds));
  const int64_t before = held_bytes;
  {
    // Room for two of the longest requests, under a sanitizer for one.
    const auto backend = MakeTestBackend(model, Options(model, 64 * (kSanitized ? 6 : 12)));
    SchedulerOptions options;
    options.cost = FewCores();
    Scheduler scheduler(*backend, options);
    scheduler.Start();
    std::mt19937 random(3);
    std::deque<std::shared_ptr<TokenStream>> streams;
    int64_t threads = 0, descriptors = 0;
    const auto finish_one = [&] {
      const std::shared_ptr<TokenStream> stream = streams.front();
      streams.pop_front();
      if (random() % 10 == 0) stream->Cancel();
      if (random() % 20 == 0) return;
      StreamEvent event;
      while (IsEvent(stream->Next(event))) {
      }
      EXPECT_NE(stream->statistics(0).finish_reason, FinishReason::kError)
          << stream->statistics(0).error;
    };
    for (int round = 0; round < rounds; ++round) {
      for (int i = 0; i < per_round; ++i) {
        ResolvedRequest request = MakeRequest(model, prompts, static_cast<How>(random() % 3),
                                              static_cast<uint32_t>(random() % 1000), 6);
        request.prompt.resize(1 + random() % request.prompt.size());
        request.choices = random() % 8 == 0 ? 2 : 1;
        streams.push_back(scheduler.Submit(request));
        if (leak) leak(round * per_round + i, streams.back());
        // Those that are cancelled later may have come to their end.
        if (random() % 20 == 0) streams.back()->Cancel();
        if (streams.size() > 24) finish_one();
      }
      while (!streams.empty()) finish_one();
      streams.push_back(scheduler.Submit(FillsAllPages(model, *backend)));
      StreamEvent event;
      while (IsEvent(streams.front()->Next(event))) {
      }
      EXPECT_EQ(streams.front()->statistics(0).finish_reason, FinishReason::kLength);
      streams.clear();
      left.state = scheduler.state();
      for (int i = 0; i < 10'000 && Busy(left.state); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        left.state = scheduler.state();
      }
      EXPECT_FALSE(Busy(left.state));
      EXPECT_EQ(left.state.cells_free, left.state.cells);
      EXPECT_EQ(left.state.pages_cached, left.state.pages - 1);
      EXPECT_EQ(left.state.pages_free + left.state.pages_cached, left.state.pages);
      left.state.accepted = std::vector<int64_t>();  // they would count
      left.state.steps_by_rows = std::vector<int64_t>();
      left.held.push_back(held_bytes - before);
      if (round == 0) {
        threads = OfProcess("Threads");
        descriptors = Descriptors();
      }
    }
    EXPECT_EQ(OfProcess("Threads"), threads);
    EXPECT_EQ(Descriptors(), descriptors);
  }
  left.after = held_bytes - before;
  return left;
}

// How much more was held after a round than after the one before it, in the median of all but the
// first: buffers that grow to their largest size do so in few rounds, a leak in every one.
int64_t GrowthPerRound(const Left& left) {
  std::vector<int64_t> growth;
  for (size_t r = 2; r < left.held.size(); ++r) growth.push_back(left.held[r] - left.held[r - 1]);
  std::nth_element(growth.begin(), growth.begin() + std::ssize(growth) / 2, growth.end());
  return growth[growth.size() / 2];
}

// Small enough for hundreds of requests in seconds; what a request leaves behind does not depend
// on the size of the model.
Left RunTinyRounds(int rounds, int per_round, const LeakOne& leak = {}) {
  const Model model = LoadTestModel("ouro-tiny-f32");
  std::vector<std::vector<int32_t>> prompts;
  for (uint32_t i = 0; i < 5; ++i) prompts.push_back(RandomTokens(model.spec, 10 + 20 * i, i));
  RunRounds(model, prompts, 1, 4);  // what a process makes once, such as its threads' own memory
  return RunRounds(model, prompts, rounds, per_round, leak);
}

TEST(NothingLeaks, AFewHundredRequests) {
  const Left left = RunTinyRounds(6, kSanitized ? 20 : 40);
  EXPECT_EQ(GrowthPerRound(left), 0) << testing::PrintToString(left.held);
  EXPECT_EQ(left.after, 0);
  EXPECT_EQ(left.state.failed, 0);
  EXPECT_GT(left.state.cancelled, 0);
  EXPECT_GT(left.state.cached_tokens, 0);
}

// Leaks put in by hand, of one request in twenty: the measure above must see them.
constexpr int kRounds = kSanitized ? 3 : 4, kPerRound = 20;

TEST(NothingLeaks, AFewLostBytesAreSeen) {
  std::vector<std::unique_ptr<char[]>> lost;  // LeakSanitizer need not see them as well
  lost.reserve(kRounds * kPerRound);
  const Left left = RunTinyRounds(kRounds, kPerRound, [&](int request, const auto&) {
    if (request % 20 == 7) lost.push_back(std::make_unique<char[]>(8));
  });
  EXPECT_EQ(GrowthPerRound(left), 8 * kPerRound / 20) << testing::PrintToString(left.held);
  EXPECT_EQ(left.after, 8 * kRounds * kPerRound / 20);
}

TEST(NothingLeaks, StreamsThatAreKeptAreSeen) {
  std::vector<std::shared_ptr<TokenStream>> kept;
  kept.reserve(kRounds * kPerRound);
  const Left left = RunTinyRounds(kRounds, kPerRound, [&](int request, const auto& stream) {
    if (request % 20 == 7) kept.push_back(stream);
  });
  EXPECT_GT(GrowthPerRound(left), static_cast<int64_t>(sizeof(TokenStream)) * kPerRound / 20 - 1)
      << testing::PrintToString(left.held);
  EXPECT_GT(left.after, 0);
  const int64_t held = held_bytes;
  kept.clear();
  EXPECT_EQ(held - held_bytes, left.after) << "nothing but the streams";
}

TEST(NothingLeaksLong, TenThousandRequests) {
  const Model model = LoadTestModel("ouro-demo");
  RunRounds(model, DemoPrompts("ouro-demo"), 1, 4);
  const Left left = RunRounds(model, DemoPrompts("ouro-demo"), 20, 500);
  EXPECT_EQ(GrowthPerRound(left), 0) << testing::PrintToString(left.held);
  EXPECT_EQ(left.after, 0);
  EXPECT_EQ(left.state.failed, 0);
}

}  // namespace
}  // namespace loopspec

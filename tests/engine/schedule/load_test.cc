// The engine as a busy server has it: many streams over the demo models that each get what they get
// alone, and thousands of requests after which nothing is held.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/run_request.h"
#include "engine/schedule/scheduler.h"
#include "tests/support/driver.h"
#include "tests/support/models.h"

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
DecodeRequest MakeRequest(const Model& model, const std::vector<std::vector<int32_t>>& prompts,
                          How how, uint32_t i, int longest) {
  std::mt19937 random(i % 40);
  DecodeRequest request;
  request.prompt = prompts[random() % prompts.size()];
  if (random() % 3 == 0) {
    const std::vector<int32_t> before = RandomTokens(model.spec, 64 * (1 + random() % 3), 7);
    request.prompt.insert(request.prompt.begin(), before.begin(), before.end());
  }
  request.depths = model.spec.recurrence == 4 ? std::vector{1, 2} : std::vector{2, 8};
  request.early = EarlyChildren::kLookup;
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
  const Model model = LoadTestModel(name);
  const auto prompts = DemoPrompts(name);
  const auto alone_backend = MakeTestBackend(model, Options(model, 1024));
  const auto backend = MakeTestBackend(model, Options(model, 64 * 250));
  Scheduler alone(*alone_backend, OneAtATime());
  SchedulerOptions options;
  options.cost = FewCores();
  Scheduler scheduler(*backend, options);
  scheduler.Start();
  std::vector<std::vector<int32_t>> texts(count);
  std::vector<ChoiceResult> results(count);
  std::vector<std::thread> clients;
  for (uint32_t client = 0; client < 8; ++client) {
    clients.emplace_back([&, client] {
      std::vector<uint32_t> mine;
      std::vector<std::shared_ptr<TokenStream>> streams;
      for (uint32_t i = client; i < count; i += 8) {
        mine.push_back(i);
        streams.push_back(
            scheduler.Submit({.request = MakeRequest(model, prompts, how, i, longest)}));
        std::this_thread::sleep_for(std::chrono::milliseconds(3 * client));
      }
      for (size_t s = 0; s < streams.size(); ++s) {
        StreamEvent event;
        std::vector<int32_t>& ids = texts[mine[s]];
        while (streams[s]->Next(event) == TokenStream::Status::kEvent) {
          if (event.kind == StreamEvent::Kind::kToken) ids.push_back(event.token.token);
          if (mine[s] % 6 == 1 && ids.size() == 3) streams[s]->Cancel();
        }
        results[mine[s]] = streams[s]->result(0);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  int64_t cached = 0;
  for (uint32_t i = 0; i < count; ++i) {
    std::vector<int32_t> expected;
    for (const CommittedToken& token :
         RunRequest(alone, {.request = MakeRequest(model, prompts, how, i, longest)}).tokens)
      expected.push_back(token.token);
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

TEST(ExactUnderLoad, OuroGreedy) {
  ExactUnderLoad("ouro-demo", How::kGreedy, 16, 20);
}
TEST(ExactUnderLoad, OuroCoupled) {
  ExactUnderLoad("ouro-demo", How::kCoupled, 16, 16);
}
TEST(ExactUnderLoad, OuroCascade) {
  ExactUnderLoad("ouro-demo", How::kCascade, 16, 16);
}
TEST(ExactUnderLoad, RavenGreedy) {
  ExactUnderLoad("raven-demo", How::kGreedy, 12, 12);
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

// `count` requests of all kinds over one scheduler, some at a time; one in ten is cancelled at a
// moment of its own, and the streams of one in twenty are dropped unread.
void NothingLeaks(int count, int64_t growth_kib) {
  const Model model = LoadTestModel("ouro-demo");
  const auto prompts = DemoPrompts("ouro-demo");
  const auto backend = MakeTestBackend(model, Options(model, 64 * 60));
  SchedulerOptions options;
  options.cost = FewCores();
  Scheduler scheduler(*backend, options);
  scheduler.Start();
  std::mt19937 random(3);
  std::vector<std::shared_ptr<TokenStream>> streams;
  int64_t memory = 0, threads = 0, descriptors = 0, cancelled = 0;
  const auto cancel = [&](TokenStream& stream) {
    stream.Cancel();
    ++cancelled;
  };
  const auto finish_one = [&] {
    std::shared_ptr<TokenStream> stream = streams.front();
    streams.erase(streams.begin());
    if (random() % 10 == 0) cancel(*stream);
    if (random() % 20 == 0) return;
    StreamEvent event;
    while (stream->Next(event) == TokenStream::Status::kEvent) {
    }
    EXPECT_NE(stream->result(0).finish_reason, FinishReason::kError) << stream->result(0).error;
  };
  for (int i = 0; i < count; ++i) {
    DecodeRequest request = MakeRequest(model, prompts, static_cast<How>(random() % 3),
                                        static_cast<uint32_t>(random() % 1000), 6);
    request.prompt.resize(1 + random() % request.prompt.size());
    streams.push_back(scheduler.Submit({.request = request, .choices = random() % 8 == 0 ? 2 : 1}));
    // Those that are cancelled later may have come to their end.
    if (random() % 20 == 0) cancel(*streams.back());
    if (streams.size() > 24) finish_one();
    if (i == count / 2) {  // by then everything has been used
      memory = OfProcess("VmRSS");
      threads = OfProcess("Threads");
      descriptors = Descriptors();
    }
  }
  while (!streams.empty()) finish_one();
  SchedulerState state = scheduler.state();
  for (int i = 0; i < 1000 && state.waiting + state.prefilling + state.decoding > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    state = scheduler.state();
  }
  EXPECT_EQ(state.waiting + state.prefilling + state.decoding + state.preempted, 0);
  EXPECT_EQ(state.cells_free, state.cells);
  EXPECT_EQ(state.pages_free + state.pages_cached, state.pages);
  EXPECT_EQ(state.failed, 0);
  EXPECT_GT(state.cancelled, 0);
  EXPECT_GT(cancelled, count / 20);
  EXPECT_EQ(OfProcess("Threads"), threads);
  EXPECT_EQ(Descriptors(), descriptors);
  EXPECT_LE(OfProcess("VmRSS") - memory, growth_kib);
  std::printf("%d requests: %ld KiB more than halfway\n", count,
              static_cast<long>(OfProcess("VmRSS") - memory));
}

TEST(NothingLeaks, AFewHundredRequests) {
  NothingLeaks(200, 4096);
}
TEST(NothingLeaksLong, TenThousandRequests) {
  NothingLeaks(10'000, 4096);
}

}  // namespace
}  // namespace loopspec

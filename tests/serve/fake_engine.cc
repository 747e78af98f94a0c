#include "tests/serve/fake_engine.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace loopspec::test {

using serve::EngineRequest;
using serve::EventSink;
using serve::FinishEvent;
using serve::TokenEvent;
using Clock = std::chrono::steady_clock;

constexpr int32_t kBegin = 256, kEnd = 257, kVocab = 258;

struct FakeEngine::Run {
  EngineRequest request;
  std::shared_ptr<EventSink> sink;
  std::atomic<bool> cancelled{false};
  bool prompt_reported = false;
  int tokens = 0;             // of each choice so far
  std::vector<bool> stopped;  // by choice
  std::string text;           // of a choice so far
  Clock::time_point next = Clock::now();
};

class FakeEngine::Task : public serve::EngineTask {
 public:
  explicit Task(std::shared_ptr<Run> run) : run_(std::move(run)) {}
  void Cancel() override { run_->cancelled = true; }

 private:
  std::shared_ptr<Run> run_;
};

FakeEngine::FakeEngine(const FakeEngineOptions& options) : options_(options) {
  facts_.name = "fake";
  facts_.created = 1;
  facts_.context = options.context;
  facts_.vocab = kVocab;
  facts_.recurrence = 4;
  facts_.depths = {{1, 2}, {2}};
  facts_.temperature = 0.7;
  facts_.bos_token = "<s>";
  facts_.eos_token = "</s>";
  facts_.eos_ids = {kEnd};
  facts_.chat_template = "{{ messages }}";
  thread_ = std::thread([this] { Drive(); });
}

FakeEngine::~FakeEngine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::unique_ptr<serve::EngineTask> FakeEngine::Submit(EngineRequest request,
                                                      std::shared_ptr<EventSink> sink) {
  auto run = std::make_shared<Run>();
  run->stopped.resize(static_cast<size_t>(request.n));
  run->sink = std::move(sink);
  {
    const std::lock_guard lock(mutex_);
    if (static_cast<int>(runs_.size()) >= options_.queue) {
      throw serve::ApiException(serve::Busy("The queue is full."));
    }
    last_ = request;
    run->request = std::move(request);
    runs_.push_back(run);
    ++running_;
    ++submitted_;
  }
  changed_.notify_all();
  return std::make_unique<Task>(std::move(run));
}

void FakeEngine::Drive() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (runs_.empty()) {
      changed_.wait(lock, [&] { return stopping_ || !runs_.empty(); });
      continue;
    }
    std::vector<std::shared_ptr<Run>> now = runs_;
    lock.unlock();
    std::vector<Run*> over;
    for (const auto& run : now) {
      if (run->cancelled) {
        ++cancelled_;
        over.push_back(run.get());
      } else if (Clock::now() >= run->next && !Step(*run)) {
        over.push_back(run.get());
      }
    }
    now.clear();
    lock.lock();
    const size_t before = runs_.size();
    std::vector<std::shared_ptr<Run>> gone;
    std::erase_if(runs_, [&](const auto& run) {
      if (std::find(over.begin(), over.end(), run.get()) == over.end()) return false;
      gone.push_back(run);
      return true;
    });
    running_ -= static_cast<int>(before - runs_.size());
    lock.unlock();
    gone.clear();  // lets the sinks go, outside the lock
    if (options_.token_seconds > 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    lock.lock();
  }
}

TokenEvent FakeEngine::MakeToken(const Run& run, int32_t id) const {
  TokenEvent token;
  token.id = id;
  token.source = run.tokens % 3;
  token.early = run.tokens % 5 == 0;
  if (run.request.logprobs >= 0) {
    token.logprob = -0.25;
    token.top.push_back({id, -0.25});
    for (int i = 1; i < run.request.logprobs; ++i) {
      token.top.push_back({i, -0.25 - i});
    }
    token.top.resize(static_cast<size_t>(std::max(run.request.logprobs, 0)));
  }
  return token;
}

FinishEvent FakeEngine::MakeFinish(const Run& run, std::string reason) const {
  FinishEvent finish;
  finish.reason = std::move(reason);
  finish.statistics.completion_tokens = run.tokens;
  finish.statistics.accepted = {run.tokens / 2, run.tokens / 4};
  finish.statistics.fallback = run.tokens - run.tokens / 2 - run.tokens / 4;
  finish.statistics.gamma = 2.5;
  finish.statistics.cached_tokens = 3;
  return finish;
}

// One token for every choice. False when the run is over.
bool FakeEngine::Step(Run& run) {
  const EngineRequest& request = run.request;
  run.next += std::chrono::nanoseconds(static_cast<int64_t>(options_.token_seconds * 1e9));
  if (request.score_prompt && !std::exchange(run.prompt_reported, true)) {
    std::vector<TokenEvent> prompt;
    for (const int32_t id : request.prompt) {
      prompt.push_back(MakeToken(run, id));
      if (prompt.size() == 1) prompt.back().logprob.reset();
    }
    run.sink->OnPrompt(std::move(prompt));
  }
  const auto finish = [&](const FinishEvent& event) {
    for (int choice = 0; choice < request.n; ++choice) run.sink->OnFinish(choice, event);
    return false;
  };
  if (run.tokens == options_.fail_at) {
    run.sink->OnError("The engine was told to fail.", options_.fail_busy);
    return false;
  }
  if (run.tokens >= request.max_tokens) return finish(MakeFinish(run, "length"));
  const auto size = static_cast<int>(options_.answer.size());
  if (!options_.endless && run.tokens >= size) return finish(MakeFinish(run, "stop"));

  const auto byte =
      static_cast<unsigned char>(options_.answer[static_cast<size_t>(run.tokens % size)]);
  run.text.push_back(static_cast<char>(byte));
  for (const std::string& stop : request.stop) {
    if (run.text.size() < stop.size() ||
        run.text.compare(run.text.size() - stop.size(), stop.size(), stop) != 0) {
      continue;
    }
    FinishEvent event = MakeFinish(run, "stop");
    event.stop_string = stop;
    return finish(event);
  }
  for (int choice = 0; choice < request.n; ++choice) {
    TokenEvent token = MakeToken(run, byte);
    token.text = options_.whole_text ? options_.answer : TokenPiece(byte);
    run.sink->OnToken(choice, std::move(token));
  }
  ++run.tokens;
  ++tokens_;
  return true;
}

serve::EngineMetrics FakeEngine::metrics() const {
  serve::EngineMetrics metrics;
  metrics.running = running_;
  metrics.kv_usage = 0.5;
  metrics.cells_usage = 0.25;
  metrics.prefix_queries = 10;
  metrics.prefix_hits = 4;
  metrics.accepted = {7, 3};
  metrics.steps = 8;
  metrics.rows = 15;
  metrics.steps_by_rows = {0, 5, 0, 2, 1};
  return metrics;
}

std::vector<int32_t> FakeEngine::Tokenize(std::string_view text, bool add_special) const {
  std::vector<int32_t> ids;
  if (add_special) ids.push_back(kBegin);
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string FakeEngine::Detokenize(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    if (id < kBegin) text.push_back(static_cast<char>(id));
  }
  return text;
}

std::string FakeEngine::TokenPiece(int32_t id) const {
  if (id == kBegin) return "<s>";
  if (id == kEnd) return "</s>";
  return std::string(1, static_cast<char>(id));
}

std::string FakeEngine::RenderChat(const OrderedJson& messages,
                                   const OrderedJson& arguments) const {
  std::string text;
  for (const auto& message : messages) {
    if (message["content"] == "refuse me") Fail("the chat template says: no");
    text +=
        message["role"].get<std::string>() + ": " + message["content"].get<std::string>() + "\n";
  }
  if (arguments.value("enable_thinking", false)) text += "<think>\n";
  return text;
}

bool FakeEngine::WaitIdle(double seconds) const {
  const auto limit = Clock::now() + std::chrono::duration<double>(seconds);
  while (running_ > 0) {
    if (Clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

EngineRequest FakeEngine::last() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

}  // namespace loopspec::test

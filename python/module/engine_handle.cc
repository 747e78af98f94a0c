#include "engine_handle.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <future>
#include <thread>
#include <utility>

#include "base/error.h"
#include "errors.h"
#include "given_up.h"
#include "signals.h"

namespace loopspec::python {
namespace {

std::unique_ptr<Engine> Load(const EngineOptions& options) {
  return Await(
      std::async(std::launch::async, [options] { return std::make_unique<Engine>(options); }),
      CheckSignals);
}

// Which of many streams have something to read. Their OnReady calls Ring.
class Bell {
 public:
  void Ring(size_t stream) {
    const std::lock_guard lock(mutex_);
    if (stream >= rung_.size()) rung_.resize(stream + 1);
    if (rung_[stream]) return;
    rung_[stream] = true;
    streams_.push_back(stream);
    ready_.notify_one();
  }
  // Those that rang, perhaps none after a slice of time. A step's tokens ring one after the other:
  // woken by each, this thread would take the engine's cores from it.
  std::vector<size_t> Wait() {
    std::unique_lock lock(mutex_);
    if (!ready_.wait_for(lock, kSlice, [&] { return !streams_.empty(); })) return {};
    lock.unlock();
    std::this_thread::sleep_for(kGather);
    lock.lock();
    for (const size_t stream : streams_) rung_[stream] = false;
    return std::exchange(streams_, {});
  }

 private:
  static constexpr std::chrono::milliseconds kGather{1};

  std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<bool> rung_;
  std::vector<size_t> streams_;
};

// A list of requests under way: some wait for room in the engine's queue, some are read, some have
// ended.
class ManyRequests {
 public:
  ManyRequests(const EngineHandle& engine, const std::vector<Request>& requests,
               const EngineHandle::Hooks& hooks)
      : engine_(engine), requests_(requests), hooks_(hooks), answers_(requests.size()) {
    streams_.resize(requests.size());
    // Others find room in the queue, too.
    room_ = std::max(1, engine.facts().max_queued / 2);
  }

  bool finished() const { return done_ == requests_.size(); }
  size_t done() const { return done_; }
  int64_t tokens() const { return tokens_; }
  std::vector<Answer>& answers() { return answers_; }

  // Hands in as many as there is room for.
  void Feed() {
    while (next_ < requests_.size() && (waiting_ == 0 || waiting_ < room_)) {
      const Request& request = requests_[next_];
      try {
        streams_[next_] = std::make_unique<Stream>(engine_.Submit(engine_.Encoded(request)));
      } catch (const QueueFull&) {
        return;  // others have filled it: again when something has ended, or a slice has passed
      } catch (const Error& error) {
        Refuse(next_++, InPython(error));
        continue;
      }
      answers_[next_] = Answer(*streams_[next_]);
      waiting_ += streams_[next_]->choices();
      const size_t number = next_++;
      streams_[number]->OnReady([bell = bell_, number] { bell->Ring(number); });
    }
  }

  void Read() {
    for (const size_t number : bell_->Wait()) Read(number);
  }

 private:
  void Read(size_t number) {
    if (!streams_[number]) return;  // it rang after its end
    Stream& stream = *streams_[number];
    Answer& answer = answers_[number];
    for (Token token;;) {
      const Stream::Status status = stream.Next(token, std::chrono::milliseconds(0));
      if (status == Stream::Status::kTimeout) return;
      if (status == Stream::Status::kDone) break;
      answer.Absorb(stream, status, token);
      if (status == Stream::Status::kToken) ++tokens_;
    }
    waiting_ -= stream.choices();
    streams_[number].reset();
    Finish(number);
  }
  void Refuse(size_t number, std::string error) {
    answers_[number].error = std::move(error);
    answers_[number].refused = true;
    Finish(number);
  }
  void Finish(size_t number) {
    ++done_;
    if (hooks_.finished) hooks_.finished(number, answers_[number]);
  }

  const EngineHandle& engine_;
  const std::vector<Request>& requests_;
  const EngineHandle::Hooks& hooks_;
  std::vector<Answer> answers_;
  std::vector<std::unique_ptr<Stream>> streams_;  // null: not yet, or ended
  const std::shared_ptr<Bell> bell_ = std::make_shared<Bell>();
  size_t next_ = 0, done_ = 0;
  int room_ = 1, waiting_ = 0;  // choices
  int64_t tokens_ = 0;
};

}  // namespace

EngineHandle::EngineHandle(const EngineOptions& options)
    : engine_(Load(options)), facts_(engine_->facts()) {}

EngineHandle::~EngineHandle() {
  if (process_.here()) {
    Close();
  } else {
    new std::shared_ptr<Engine>(std::move(engine_));  // never destroyed: its threads are not here
  }
}

std::shared_ptr<Engine> EngineHandle::Get() const {
  process_.Check();
  const std::lock_guard lock(mutex_);
  if (!engine_) throw ClosedError("the engine is closed");
  return engine_;
}

void EngineHandle::Close() {
  process_.Check();
  std::shared_ptr<Engine> engine;
  const std::lock_guard lock(mutex_);
  engine.swap(engine_);
}

bool EngineHandle::closed() const {
  process_.Check();
  const std::lock_guard lock(mutex_);
  return engine_ == nullptr;
}

Request EngineHandle::Encoded(Request request) const {
  if (!request.tokens.empty() || !facts_.has_tokenizer) return request;
  const std::shared_ptr<Engine> engine = Get();
  SignalWatch signals;
  EncodeLimits limits;
  limits.cancelled = [&] { return signals.Raised(); };
  try {
    if (request.messages_json.empty()) {
      request.tokens = engine->Encode(request.prompt, request.add_special_tokens, limits);
      if (!request.tokens.empty()) request.prompt.clear();
    } else {
      request.tokens =
          engine->EncodeChat(request.messages_json, request.template_arguments, nullptr, limits);
      request.messages_json.clear();
      request.template_arguments.clear();
    }
  } catch (const EncodeCancelled&) {
    const nanobind::gil_scoped_acquire lock;
    signals.Rethrow();
    throw;
  }
  return request;
}

Stream EngineHandle::Submit(const Request& request) const {
  return Get()->Submit(request);
}

std::vector<Answer> EngineHandle::Run(const std::vector<Request>& requests,
                                      const Hooks& hooks) const {
  ManyRequests many(*this, requests, hooks);
  auto last = std::chrono::steady_clock::now();
  while (!many.finished()) {
    many.Feed();
    many.Read();
    const auto now = std::chrono::steady_clock::now();
    if (now - last < kSlice) continue;
    last = now;
    CheckSignals();
    if (hooks.progress) hooks.progress(many.done(), many.tokens());
  }
  if (hooks.progress) hooks.progress(many.done(), many.tokens());
  return std::move(many.answers());
}

}  // namespace loopspec::python

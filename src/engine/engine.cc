// The public API over session and scheduler.
#include "loopspec/engine.h"

#include <iterator>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/json.h"
#include "engine/memory_bound.h"
#include "engine/schedule/scheduler.h"
#include "engine/session.h"
#include "engine/token_stream.h"
#include "text/chat_json.h"

namespace loopspec {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

// The steps of an engine without a thread of its own, one at a time, by whichever reader has
// nothing to read.
class StepDriver {
 public:
  explicit StepDriver(Scheduler& scheduler) : scheduler_(&scheduler) {}

  // False when there was nothing to do, or the engine is gone.
  bool Step() {
    const std::lock_guard lock(mutex_);
    return scheduler_ != nullptr && scheduler_->Step();
  }
  void Detach() {
    const std::lock_guard lock(mutex_);
    scheduler_ = nullptr;
  }

 private:
  std::mutex mutex_;
  Scheduler* scheduler_;
};

// ---- Stream ----

struct Stream::State {
  std::shared_ptr<TokenStream> tokens;
  std::shared_ptr<StepDriver> driver;         // null: a thread of the engine's takes its steps
  std::shared_ptr<const LoadedModel> loaded;  // for what outlives the engine: statistics
  BackendOptions backend;
  StreamEvent event;  // the last one read

  Status Next(std::optional<std::chrono::milliseconds> timeout, Token& token);
  Status Await(std::optional<std::chrono::milliseconds> timeout);
};

Stream::Status Stream::State::Await(std::optional<std::chrono::milliseconds> timeout) {
  if (driver == nullptr) return tokens->Next(event, timeout);
  const Clock::time_point start = Clock::now();
  for (;;) {
    const Status status = tokens->Next(event, std::chrono::milliseconds(0));
    if (status != Status::kTimeout) return status;
    if (timeout && Clock::now() - start >= *timeout) return status;
    driver->Step();
  }
}

Stream::Status Stream::State::Next(std::optional<std::chrono::milliseconds> timeout, Token& token) {
  const Status status = Await(timeout);
  if (IsEvent(status)) token = std::move(event.token);
  return status;
}

Stream::Stream(std::unique_ptr<State> state) : state_(std::move(state)) {}
Stream::Stream(Stream&&) noexcept = default;

Stream& Stream::operator=(Stream&& other) noexcept {
  Stream before = std::move(*this);  // is cancelled here
  state_ = std::move(other.state_);
  return *this;
}

Stream::~Stream() {
  if (!state_) return;
  state_->tokens->OnReady({});
  state_->tokens->Cancel();
}

Stream::Status Stream::Next(Token& token) {
  return state_->Next(std::nullopt, token);
}

Stream::Status Stream::Next(Token& token, std::chrono::milliseconds timeout) {
  return state_->Next(timeout, token);
}

void Stream::Cancel() {
  state_->tokens->Cancel();
}

void Stream::OnReady(std::function<void()> ready) {
  state_->tokens->OnReady(std::move(ready));
}

int Stream::choices() const {
  return state_->tokens->choices();
}

uint64_t Stream::seed() const {
  return state_->tokens->request().seed;
}

const std::vector<int32_t>& Stream::prompt() const {
  return state_->tokens->request().prompt;
}

const std::vector<int>& Stream::depths() const {
  return state_->tokens->request().depths;
}

Stream::Progress Stream::progress() const {
  return state_->event.progress;
}

const std::vector<TraceEvent>& Stream::trace() const {
  return state_->event.trace;
}

Statistics Stream::statistics(int choice) const {
  Statistics statistics = state_->tokens->statistics(choice);
  statistics.bytes_read = BytesRead(state_->loaded->model(), state_->backend, statistics);
  return statistics;
}

std::vector<Token> Stream::prompt_logprobs() const {
  return state_->tokens->prompt_logprobs();
}

// ---- Engine ----

struct Engine::Parts {
  const std::unique_ptr<Session> session;
  const ModelFacts facts;
  Scheduler scheduler;
  std::shared_ptr<StepDriver> driver;  // null: the scheduler has a thread

  explicit Parts(std::unique_ptr<Session> given)
      : session(std::move(given)),
        facts(session->Facts()),
        scheduler(session->backend(), session->scheduler_options()) {
    if (session->options().background)
      scheduler.Start();
    else
      driver = std::make_shared<StepDriver>(scheduler);
  }
  ~Parts() {
    if (driver) driver->Detach();
  }
};

Engine::Engine(const EngineOptions& options) : Engine(std::make_unique<Session>(options)) {}
Engine::Engine(const EngineOptions& options, std::shared_ptr<const LoadedModel> loaded)
    : Engine(std::make_unique<Session>(options, std::move(loaded))) {}
Engine::Engine(std::unique_ptr<Session> session)
    : parts_(std::make_unique<Parts>(std::move(session))) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

Session& Engine::session() {
  return *parts_->session;
}

Stream Engine::Submit(const Request& request) {
  const Session& session = *parts_->session;
  auto state = std::make_unique<Stream::State>();
  state->tokens = parts_->scheduler.Submit(session.Resolve(request));
  state->driver = parts_->driver;
  state->loaded = session.shared_loaded();
  state->backend = session.backend().options();
  return Stream(std::move(state));
}

bool Engine::Step() {
  LOOPSPEC_CHECK(parts_->driver != nullptr);
  return parts_->driver->Step();
}

Result Engine::Generate(const Request& request, const OnToken& on_token,
                        const OnProgress& on_progress) {
  Stream stream = Submit(request);
  Result result;
  result.seed = stream.seed();
  result.depths = stream.depths();
  result.choices.resize(static_cast<size_t>(stream.choices()));
  for (Choice& choice : result.choices)
    choice.tokens.reserve(static_cast<size_t>(request.max_tokens.value_or(0)));
  bool stopped = false;  // by a callback
  bool dropped = false;  // tokens that came after that: what a step had decided beyond
  const auto stop_unless = [&](bool going_on) {
    if (going_on) return;
    stopped = true;
    stream.Cancel();
  };
  Token token;
  for (Stream::Status status; (status = stream.Next(token)) != Stream::Status::kDone;) {
    Choice& choice = result.choices[static_cast<size_t>(token.choice)];
    switch (status) {
      case Stream::Status::kPrompt:
        result.prompt_logprobs = stream.prompt_logprobs();
        break;
      case Stream::Status::kProgress:
        if (on_progress && !stopped) stop_unless(on_progress(stream.progress()));
        break;
      case Stream::Status::kTrace:
        choice.trace.insert(choice.trace.end(), stream.trace().begin(), stream.trace().end());
        break;
      case Stream::Status::kToken:
        dropped = dropped || stopped;
        if (dropped) break;
        if (on_token) stop_unless(on_token(token));
        choice.text += token.text;
        choice.tokens.push_back(std::move(token));
        break;
      case Stream::Status::kEnd:
        choice.statistics = stream.statistics(token.choice);
        if (choice.statistics.finish_reason == FinishReason::kError)
          throw Error(choice.statistics.error);
        if (!dropped) choice.text += token.text;
        choice.statistics.decoded_tokens = std::ssize(choice.tokens);
        break;
      case Stream::Status::kTimeout:
      case Stream::Status::kDone:
        break;
    }
  }
  return result;
}

const ModelFacts& Engine::facts() const {
  return parts_->facts;
}

EngineMetrics Engine::metrics() const {
  EngineMetrics metrics = parts_->scheduler.state();
  metrics.page_positions = kPageSize;
  return metrics;
}

std::vector<int32_t> Engine::Encode(std::string_view text, bool add_special_tokens,
                                    const EncodeLimits& limits) const {
  return parts_->session->loaded().tokenizer().Encode(text, add_special_tokens, limits);
}

std::string Engine::Decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  return parts_->session->loaded().tokenizer().Decode(ids, skip_special_tokens);
}

std::string_view Engine::Piece(int32_t id) const {
  return parts_->session->loaded().TokenPiece(id);
}

std::vector<std::string> Engine::CheckGrammar(const GrammarSource& grammar) const {
  return parts_->session->grammars().Get(grammar)->ignored();
}

std::string Engine::Render(const ChatJson& chat) const {
  return parts_->session->loaded().Render(chat.messages, chat.arguments);
}

std::vector<int32_t> Engine::EncodeChat(const ChatJson& chat, std::string* text,
                                        const EncodeLimits& limits) const {
  return parts_->session->loaded().EncodeMessages(chat.messages, chat.arguments, text, limits);
}

std::string Engine::Render(std::string_view messages_json,
                           std::string_view template_arguments) const {
  return Render(ChatJson{ParseOrderedJson(messages_json, "messages"),
                         ParseArgumentObject(template_arguments)});
}

std::vector<int32_t> Engine::EncodeChat(std::string_view messages_json,
                                        std::string_view template_arguments, std::string* text,
                                        const EncodeLimits& limits) const {
  return EncodeChat(ChatJson{ParseOrderedJson(messages_json, "messages"),
                             ParseArgumentObject(template_arguments)},
                    text, limits);
}

}  // namespace loopspec

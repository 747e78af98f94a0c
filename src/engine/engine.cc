// The public API over session and scheduler.
#include "loopspec/engine.h"

#include <mutex>
#include <stdexcept>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "decode/depths.h"
#include "engine/memory_bound.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/token_stream.h"
#include "engine/session.h"

namespace loopspec {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<Alternative> ToAlternatives(const std::vector<TokenLogprob>& top) {
  std::vector<Alternative> list;
  list.reserve(top.size());
  for (const TokenLogprob& entry : top) list.push_back({entry.token, entry.logprob});
  return list;
}

Stream::Status ToStatus(StreamEvent::Kind kind) {
  switch (kind) {
    case StreamEvent::Kind::kPrompt:
      return Stream::Status::kPrompt;
    case StreamEvent::Kind::kProgress:
      return Stream::Status::kProgress;
    case StreamEvent::Kind::kSteps:
      return Stream::Status::kTrace;
    case StreamEvent::Kind::kEnd:
      return Stream::Status::kEnd;
    case StreamEvent::Kind::kToken:
      break;
  }
  return Stream::Status::kToken;
}

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
  TokenStream::Status Await(std::optional<std::chrono::milliseconds> timeout);
};

TokenStream::Status Stream::State::Await(std::optional<std::chrono::milliseconds> timeout) {
  if (driver == nullptr) return tokens->Next(event, timeout);
  const Clock::time_point start = Clock::now();
  for (;;) {
    const TokenStream::Status status = tokens->Next(event, std::chrono::milliseconds(0));
    if (status != TokenStream::Status::kTimeout) return status;
    if (timeout && Clock::now() - start >= *timeout) return status;
    driver->Step();
  }
}

Stream::Status Stream::State::Next(std::optional<std::chrono::milliseconds> timeout, Token& token) {
  switch (Await(timeout)) {
    case TokenStream::Status::kTimeout:
      return Status::kTimeout;
    case TokenStream::Status::kDone:
      return Status::kDone;
    case TokenStream::Status::kEvent:
      break;
  }
  const CommittedToken& from = event.token;
  token.choice = event.choice;
  token.id = from.token;
  token.source = from.source;
  token.early = from.early;
  token.text = std::move(event.text);
  token.logprob = tokens->request().logprobs ? std::optional(from.logprob) : std::nullopt;
  token.top = ToAlternatives(from.top);
  token.time = event.time;
  return ToStatus(event.kind);
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
  return {state_->event.prefilled, state_->event.to_prefill};
}

const std::vector<TraceEvent>& Stream::trace() const {
  return state_->event.steps;
}

Statistics Stream::statistics(int choice) const {
  const ChoiceResult result = state_->tokens->result(choice);
  const DecodeStatistics& counts = result.statistics;
  const ResolvedRequest& request = state_->tokens->request();
  const int recurrence = request.recurrence;
  Statistics out;
  out.finish_reason = result.finish_reason;
  out.error = result.error;
  if (result.finish_reason == FinishReason::kStop) {
    if (!result.stop_string.empty())
      out.stop_string = result.stop_string;
    else
      out.stop_token = result.last_token;
  }
  out.prompt_tokens = result.prompt_tokens;
  out.cached_tokens = result.cached_tokens;
  out.decoded_tokens = result.decoded_tokens;
  out.accepted = counts.accepted;
  out.fallback = counts.fallback;
  out.early = counts.early;
  out.gamma = Gamma(counts.accepted, counts.fallback, request.depths, recurrence);
  out.preemptions = result.preemptions;
  out.queue_seconds = result.queue_seconds;
  out.prefill_seconds = result.times.prefill;
  out.first_token_seconds = result.times.first_token;
  out.decode_seconds = result.times.decode;
  out.tokens_per_second = result.tokens_per_second();
  out.drafted = counts.drafted;
  out.gate_evaluated = counts.gate_evaluated;
  out.gate_opened = counts.gate_opened;
  out.guesses = counts.guesses;
  out.guesses_adopted = counts.adopted;
  out.recurrences = counts.steps;
  out.rows_mean = counts.rows_mean();
  out.rows_peak = counts.rows_peak;
  out.rows_histogram = counts.rows_histogram;
  if (counts.steps > 0)
    out.tokens_per_pass =
        static_cast<double>(result.decoded_tokens) * recurrence / static_cast<double>(counts.steps);
  out.prelude_seconds = result.times.prelude;
  out.recur_seconds = result.times.recur;
  out.readout_seconds = result.times.readout;
  out.host_seconds = result.times.host;
  out.bytes_read = BytesRead(state_->loaded->model(), state_->backend, counts);
  return out;
}

std::vector<Token> Stream::prompt_logprobs() const {
  std::vector<Token> list;
  for (const PromptLogprob& score : state_->tokens->prompt_logprobs()) {
    Token& token = list.emplace_back();
    token.id = score.token;
    token.logprob = score.logprob;
    token.top = ToAlternatives(score.top);
  }
  return list;
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

Result Engine::Generate(const Request& request, const OnToken& on_token) {
  Stream stream = Submit(request);
  Result result;
  result.seed = stream.seed();
  result.choices.resize(static_cast<size_t>(stream.choices()));
  bool stopped = false;  // by the callback
  bool dropped = false;  // tokens that came after that: what a step had decided beyond
  Token token;
  for (Stream::Status status; (status = stream.Next(token)) != Stream::Status::kDone;) {
    Choice& choice = result.choices[static_cast<size_t>(token.choice)];
    if (status == Stream::Status::kPrompt) {
      result.prompt_logprobs = stream.prompt_logprobs();
    } else if (status == Stream::Status::kEnd) {
      choice.statistics = stream.statistics(token.choice);
      if (!choice.statistics.error.empty()) throw std::runtime_error(choice.statistics.error);
      if (!dropped) choice.text += token.text;
    } else if (status == Stream::Status::kToken && stopped) {
      dropped = true;
    } else if (status == Stream::Status::kToken) {
      if (on_token && !on_token(token)) {
        stopped = true;
        stream.Cancel();
      }
      choice.text += token.text;
      choice.tokens.push_back(std::move(token));
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

std::string Engine::Render(std::string_view messages_json,
                           std::string_view template_arguments) const {
  return parts_->session->loaded().Render(
      ParseOrderedJson(messages_json, "messages"),
      template_arguments.empty() ? OrderedJson::object()
                                 : ParseOrderedJson(template_arguments, "template arguments"));
}

std::vector<int32_t> Engine::EncodeChat(std::string_view messages_json,
                                        std::string_view template_arguments, std::string* text,
                                        const EncodeLimits& limits) const {
  return parts_->session->loaded().EncodeMessages(
      ParseOrderedJson(messages_json, "messages"),
      template_arguments.empty() ? OrderedJson::object()
                                 : ParseOrderedJson(template_arguments, "template arguments"),
      text, limits);
}

}  // namespace loopspec

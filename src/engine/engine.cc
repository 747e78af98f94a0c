// The public API over session and scheduler.
#include <stdexcept>
#include <utility>

#include "decode/depths.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/token_stream.h"
#include "engine/session.h"
#include "loopspec/loopspec.h"

namespace loopspec {
namespace {

std::vector<Alternative> ToAlternatives(const std::vector<TokenLogprob>& top) {
  std::vector<Alternative> list;
  for (const TokenLogprob& entry : top) list.push_back({entry.token, entry.logprob});
  return list;
}

}  // namespace

// ---- Stream ----

Stream::Stream(std::shared_ptr<TokenStream> tokens, uint64_t seed, std::vector<int32_t> prompt,
               std::vector<int> depths, int recurrence)
    : tokens_(std::move(tokens)),
      seed_(seed),
      prompt_(std::move(prompt)),
      depths_(std::move(depths)),
      recurrence_(recurrence) {}

Stream::Stream(Stream&&) noexcept = default;

Stream& Stream::operator=(Stream&& other) noexcept {
  if (tokens_ && tokens_ != other.tokens_) tokens_->Cancel();
  tokens_ = std::move(other.tokens_);
  seed_ = other.seed_;
  prompt_ = std::move(other.prompt_);
  depths_ = std::move(other.depths_);
  recurrence_ = other.recurrence_;
  return *this;
}

Stream::~Stream() {
  if (!tokens_) return;
  tokens_->OnReady({});
  tokens_->Cancel();
}

namespace {

Stream::Status ReadNext(TokenStream& tokens, std::optional<std::chrono::milliseconds> timeout,
                        Token& token) {
  StreamEvent event;
  switch (tokens.Next(event, timeout)) {
    case TokenStream::Status::kTimeout:
      return Stream::Status::kTimeout;
    case TokenStream::Status::kDone:
      return Stream::Status::kDone;
    case TokenStream::Status::kEvent:
      break;
  }
  const CommittedToken& from = event.token;
  token = {event.choice,
           from.token,
           from.source,
           from.early,
           event.text,
           from.logprob,
           ToAlternatives(from.top)};
  switch (event.kind) {
    case StreamEvent::Kind::kPrompt:
      return Stream::Status::kPrompt;
    case StreamEvent::Kind::kEnd:
      return Stream::Status::kEnd;
    case StreamEvent::Kind::kPrefilled:  // no request of this interface asks for these two
    case StreamEvent::Kind::kSteps:
    case StreamEvent::Kind::kToken:
      break;
  }
  return Stream::Status::kToken;
}

}  // namespace

Stream::Status Stream::Next(Token& token) {
  return ReadNext(*tokens_, std::nullopt, token);
}

Stream::Status Stream::Next(Token& token, std::chrono::milliseconds timeout) {
  return ReadNext(*tokens_, timeout, token);
}

void Stream::Cancel() {
  tokens_->Cancel();
}

void Stream::OnReady(std::function<void()> ready) {
  tokens_->OnReady(std::move(ready));
}

int Stream::choices() const {
  return tokens_->choices();
}

Statistics Stream::statistics(int choice) const {
  const ChoiceResult result = tokens_->result(choice);
  const DecodeStatistics& counts = result.statistics;
  Statistics statistics;
  statistics.finish_reason = NameOf(result.finish_reason);
  statistics.error = result.error;
  statistics.prompt_tokens = result.prompt_tokens;
  statistics.cached_tokens = result.cached_tokens;
  statistics.decoded_tokens = result.decoded_tokens;
  statistics.accepted = counts.accepted;
  statistics.fallback = counts.fallback;
  statistics.gamma = Gamma(counts.accepted, counts.fallback, depths_, recurrence_);
  statistics.rows_mean = counts.rows_mean();
  statistics.queue_seconds = result.queue_seconds;
  statistics.prefill_seconds = result.times.prefill;
  statistics.first_token_seconds = result.times.first_token;
  statistics.decode_seconds = result.times.decode;
  statistics.tokens_per_second = result.tokens_per_second();
  return statistics;
}

std::vector<Token> Stream::prompt_logprobs() const {
  std::vector<Token> list;
  for (const PromptLogprob& score : tokens_->prompt_logprobs()) {
    Token token;
    token.id = score.token;
    token.logprob = score.logprob;
    token.top = ToAlternatives(score.top);
    list.push_back(std::move(token));
  }
  return list;
}

// ---- Engine ----

struct Engine::Parts {
  Session session;
  Scheduler scheduler;

  explicit Parts(const EngineOptions& options)
      : session(options), scheduler(session.backend(), session.scheduler_options()) {
    scheduler.Start();
  }
};

Engine::Engine(const EngineOptions& options) : parts_(std::make_unique<Parts>(options)) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

Stream Engine::Submit(const Request& request) {
  Submission submission = parts_->session.Prepare(request);
  auto tokens = parts_->scheduler.Submit(submission);
  DecodeRequest& decode = submission.request;
  return {std::move(tokens), decode.seed, std::move(decode.prompt), std::move(decode.depths),
          parts_->session.spec().recurrence};
}

Result Engine::Generate(const Request& request, const OnToken& on_token) {
  Stream stream = Submit(request);
  Result result;
  result.seed = stream.seed();
  result.choices.resize(static_cast<size_t>(stream.choices()));
  bool listening = static_cast<bool>(on_token);
  bool stopped = false;
  Token token;
  for (Stream::Status status; (status = stream.Next(token)) != Stream::Status::kDone;) {
    Choice& choice = result.choices[static_cast<size_t>(token.choice)];
    if (status == Stream::Status::kPrompt) {
      result.prompt_logprobs = stream.prompt_logprobs();
    } else if (status == Stream::Status::kEnd) {
      choice.statistics = stream.statistics(token.choice);
      if (!choice.statistics.error.empty()) throw std::runtime_error(choice.statistics.error);
    } else if (!stopped) {  // tokens that were under way when the caller had enough are dropped
      if (listening && !on_token(token)) {
        stopped = true;
        listening = false;
        stream.Cancel();
      }
      choice.text += token.text;
      choice.tokens.push_back(std::move(token));
    }
  }
  return result;
}

SamplingParams Engine::default_sampling() const {
  return parts_->session.defaults().sampling;
}

std::vector<int32_t> Engine::Encode(std::string_view text, bool add_special_tokens) const {
  return parts_->session.loaded().tokenizer().Encode(text, add_special_tokens);
}

std::string Engine::Decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  return parts_->session.loaded().tokenizer().Decode(ids, skip_special_tokens);
}

}  // namespace loopspec

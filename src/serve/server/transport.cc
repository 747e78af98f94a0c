#include "serve/server/transport.h"

#include <utility>

#include "base/error.h"
#include "serve/openai/write.h"

namespace loopspec::serve {
namespace {

using namespace std::chrono_literals;

double Between(std::chrono::steady_clock::time_point from,
               std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

TextTransport::TextTransport(Setup setup)
    : core_(std::move(setup.core)),
      writer_(std::move(setup.writer)),
      headers_(std::move(setup.headers)),
      start_(setup.start),
      engine_(std::move(setup.engine)),
      call_(std::move(setup.call)),
      last_token_(static_cast<size_t>(call_.choices)),
      record_(std::move(setup.record)) {
  record_.completion = true;
  record_.stream = call_.stream;
  record_.choices = call_.choices;
  record_.prompt_tokens = call_.prompt_tokens;
  record_.prompt = std::move(call_.prompt);
}

void TextTransport::Run() {
  try {
    for (const Request& request : call_.requests) streams_.push_back(engine_->Submit(request));
  } catch (const QueueFull& full) {
    throw ApiException(Busy(full.what()));
  } catch (const Error& error) {
    Refuse("", "{}", error.what());
  }
  call_.requests = {};  // may be long, and the answer may take long
  const auto self = shared_from_this();
  core_->Track(self);
  writer_->OnGone([self] { self->ClientGone(); });
  writer_->Post([self] { self->Begin(); });
}

void TextTransport::CutOff() {
  writer_->Post([self = shared_from_this()] {
    self->Fail(Unavailable("The server was shut down before the answer was complete.", "draining"),
               "draining");
  });
}

void TextTransport::Begin() {
  if (over_) return;
  const auto self = shared_from_this();
  writer_->OnDrained([self] { self->Pump(); });
  writer_->After(core_->options.request_timeout, [self] { self->TimeOut(); });
  if (call_.stream) {
    writer_->After(core_->options.begin_stream_after, [self] { self->BeginStream(); });
  }
  for (Stream& stream : streams_) {
    stream.OnReady([weak = weak_from_this()] {
      if (const auto transport = weak.lock()) transport->Wake();
    });
  }
}

// ---- From the engine to the answer ----

void TextTransport::Wake() {
  if (!scheduled_.exchange(true)) writer_->Post([self = shared_from_this()] { self->Pump(); });
}

void TextTransport::Pump() {
  if (over_) return;
  if (begun_ && writer_->full()) return;  // OnDrained comes back to this
  scheduled_ = false;
  try {
    for (size_t i = 0; i < streams_.size() && !over_; ++i) Read(i);
    if (over_) return;
    AnswerWriter& answer = *call_.answer;
    if (!call_.stream) {
      if (!answer.complete()) return;
      HttpResponse response;
      response.headers = headers_;
      response.body = answer.Body(Seconds());
      Finish(200, "", "");
      return writer_->Send(std::move(response));
    }
    const bool complete = answer.complete();
    const std::string events = answer.Events(Seconds());
    if (events.empty()) return;
    BeginStream();
    if (complete) Finish(200, "", "");
    writer_->Write(events);
    if (complete) writer_->End();
  } catch (const std::exception& error) {
    Fail(Internal(error.what()));
  }
}

void TextTransport::Read(size_t prompt) {
  Stream& stream = streams_[prompt];
  AnswerWriter& answer = *call_.answer;
  for (Token token; !over_;) {
    switch (stream.Next(token, 0ms)) {
      case Stream::Status::kTimeout:
      case Stream::Status::kDone:
        return;
      case Stream::Status::kPrompt:
        answer.AddPrompt(prompt, stream.prompt_logprobs());
        break;
      case Stream::Status::kTrace:
        answer.AddTrace(prompt, token.choice, stream.trace());
        break;
      case Stream::Status::kProgress:  // not asked for
        break;
      case Stream::Status::kToken:
        Measure(prompt, token);
        answer.AddToken(prompt, std::move(token));
        break;
      case Stream::Status::kEnd:
        ReadEnd(prompt, token);
        break;
    }
  }
}

void TextTransport::ReadEnd(size_t prompt, const Token& last) {
  Statistics statistics = streams_[prompt].statistics(last.choice);
  if (statistics.finish_reason == FinishReason::kError) return Fail(Internal(statistics.error));
  call_.answer->AddEnd(prompt, last, std::move(statistics));
}

void TextTransport::Measure(size_t prompt, const Token& token) {
  const size_t each = last_token_.size() / streams_.size();
  std::optional<Clock::time_point>& before =
      last_token_[prompt * each + static_cast<size_t>(token.choice)];
  if (before) {
    core_->metrics.NextToken(Between(*before, token.time));
  } else {
    core_->metrics.FirstToken(Between(start_, token.time));
    if (!record_.first_token_seconds) record_.first_token_seconds = Between(start_, token.time);
  }
  before = token.time;
}

void TextTransport::BeginStream() {
  if (begun_ || over_) return;
  begun_ = true;
  HttpResponse head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers = headers_;
  head.headers.emplace_back("Cache-Control", "no-cache");
  head.headers.emplace_back("X-Accel-Buffering", "no");  // nginx passes events on as they come
  writer_->Begin(std::move(head), std::string(kStreamKeepAlive));
}

double TextTransport::Seconds() const {
  return Between(start_, Clock::now());
}

// ---- Ends ----

void TextTransport::ClientGone() {
  Finish(499, "cancelled", "the client hung up");
}

void TextTransport::TimeOut() {
  if (over_) return;
  ApiError error;
  error.status = 504;
  error.type = "timeout_error";
  error.code = "request_timeout";
  error.message = fmt::format("The answer was not complete after {} ms.",
                              core_->options.request_timeout.count());
  Fail(error, "timeout");
}

void TextTransport::Fail(const ApiError& error, std::string outcome) {
  if (over_) return;
  const std::string events = call_.answer->ErrorEvents(error);
  Finish(error.status, std::move(outcome), error.message);
  if (begun_) {
    writer_->Write(events);
    return writer_->End();
  }
  writer_->Send(ErrorAnswer(record_.path, error, headers_));
}

void TextTransport::Finish(int status, std::string outcome, std::string error) {
  if (std::exchange(over_, true)) return;
  core_->Untrack(this);
  const AnswerCounts counts = call_.answer->counts();
  record_.status = status;
  record_.seconds = Seconds();
  record_.outcome = outcome.empty() ? counts.outcome : std::move(outcome);
  record_.error = std::move(error);
  record_.completion_tokens = counts.completion_tokens;
  record_.cached_tokens = counts.cached_tokens;
  record_.gamma = counts.gamma;
  core_->metrics.Finished(record_);
  core_->log.Request(record_);
  streams_.clear();  // cancels what still runs
  call_.answer.reset();
  engine_.reset();
  core_->Leave();
}

}  // namespace loopspec::serve

#include "engine/token_stream.h"

#include <utility>

namespace loopspec {
namespace {

int64_t BytesOf(const StreamEvent& event) {
  return static_cast<int64_t>(sizeof(event) + event.token.text.size() +
                              event.token.top.size() * sizeof(Alternative) +
                              event.trace.size() * sizeof(TraceEvent));
}

}  // namespace

void Wakeup::Signal() {
  const std::lock_guard lock(mutex_);
  signalled_ = true;
  ready_.notify_all();
}

void Wakeup::Wait() {
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [&] { return signalled_; });
  signalled_ = false;
}

TokenStream::TokenStream(std::shared_ptr<const ResolvedRequest> request,
                         std::shared_ptr<Wakeup> engine, const Tokenizer* tokenizer)
    : request_(std::move(request)),
      engine_(std::move(engine)),
      last_tokens_(static_cast<size_t>(request_->choices), -1),
      statistics_(static_cast<size_t>(request_->choices)),
      unfinished_(request_->choices) {
  if (tokenizer == nullptr || request_->laboratory.ids_alone) return;
  IncrementalDecoder::Options text;
  text.skip_special = !request_->show_special;
  text.stop = request_->stop;
  text.hidden = request_->hidden_tokens;
  for (int i = 0; i < request_->choices; ++i)
    decoders_.push_back(std::make_unique<IncrementalDecoder>(*tokenizer, text));
}

TokenStream::~TokenStream() {
  int64_t unread = 0;
  for (size_t i = next_; i < events_.size(); ++i) unread += BytesOf(events_[i]);
  engine_->unread_bytes -= unread;
}

Stream::Status TokenStream::Next(StreamEvent& event,
                                 std::optional<std::chrono::milliseconds> timeout) {
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return !events_.empty() || unfinished_ == 0; };
  if (!timeout) {
    arrived_.wait(lock, ready);
  } else if (!ready() && (timeout->count() == 0 || !arrived_.wait_for(lock, *timeout, ready))) {
    return Stream::Status::kTimeout;
  }
  if (events_.empty()) return Stream::Status::kDone;
  engine_->unread_bytes -= BytesOf(events_[next_]);
  event = std::move(events_[next_++]);
  if (next_ == events_.size()) {
    events_.clear();
    next_ = 0;
  }
  return event.status;
}

void TokenStream::Cancel() {
  if (!cancelled_.exchange(true)) engine_->Signal();
}

void TokenStream::OnReady(std::function<void()> notify) {
  const auto shared = std::make_shared<const std::function<void()>>(std::move(notify));
  bool now;
  {
    const std::lock_guard lock(mutex_);
    notify_ = shared;
    now = !events_.empty() || unfinished_ == 0;
  }
  if (now && *shared) (*shared)();
}

Statistics TokenStream::statistics(int choice) const {
  const std::lock_guard lock(mutex_);
  return statistics_[static_cast<size_t>(choice)];
}

std::vector<Token> TokenStream::prompt_logprobs() const {
  const std::lock_guard lock(mutex_);
  return prompt_logprobs_;
}

template <typename F>
void TokenStream::Push(StreamEvent event, F change) {
  std::shared_ptr<const std::function<void()>> notify;
  event.token.time = std::chrono::steady_clock::now();
  {
    const std::lock_guard lock(mutex_);
    change();
    engine_->unread_bytes += BytesOf(event);
    events_.push_back(std::move(event));
    notify = notify_;
    arrived_.notify_all();
  }
  if (!notify || !*notify) return;
  try {
    (*notify)();
  } catch (...) {  // the reader's own business: other requests go on
  }
}

void TokenStream::PushProgress(int64_t done, int64_t total) {
  Push({.status = Stream::Status::kProgress, .progress = {done, total}}, [] {});
}

void TokenStream::PushPrompt(std::vector<Token> logprobs) {
  Push({.status = Stream::Status::kPrompt}, [&] { prompt_logprobs_ = std::move(logprobs); });
}

bool TokenStream::PushToken(Token token, bool last) {
  bool stopped = false;
  const auto choice = static_cast<size_t>(token.choice);
  last_tokens_[choice] = token.id;
  if (!decoders_.empty()) {
    IncrementalDecoder& decoder = *decoders_[choice];
    token.text = decoder.Push(token.id);
    stopped = decoder.stopped();
    if (last && !stopped) token.text += decoder.Finish();
    stopped = stopped || decoder.stopped();
  }
  Push({.token = std::move(token)}, [] {});
  return !stopped;
}

void TokenStream::PushTrace(int choice, std::vector<TraceEvent> trace) {
  Push({.status = Stream::Status::kTrace, .token = {.choice = choice}, .trace = std::move(trace)},
       [] {});
}

void TokenStream::End(int choice, Statistics statistics) {
  const auto i = static_cast<size_t>(choice);
  StreamEvent event{.status = Stream::Status::kEnd, .token = {.choice = choice}};
  std::string stop_string;
  if (!decoders_.empty()) {
    event.token.text = decoders_[i]->Finish();
    stop_string = decoders_[i]->stop_string();
  }
  if (statistics.finish_reason == FinishReason::kStop) {
    if (stop_string.empty())
      statistics.stop_token = last_tokens_[i];
    else
      statistics.stop_string = std::move(stop_string);
  }
  Push(std::move(event), [&] {
    statistics_[i] = std::move(statistics);
    --unfinished_;
  });
}

}  // namespace loopspec

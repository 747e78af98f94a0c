#include "engine/schedule/token_stream.h"

#include <utility>

namespace loopspec {

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
      results_(static_cast<size_t>(request_->choices)),
      unfinished_(request_->choices) {
  if (tokenizer == nullptr || request_->laboratory.ids_alone) return;
  IncrementalDecoder::Options text;
  text.skip_special = !request_->show_special;
  text.stop = request_->stop;
  text.hidden = request_->hidden_tokens;
  for (int i = 0; i < request_->choices; ++i)
    decoders_.push_back(std::make_unique<IncrementalDecoder>(*tokenizer, text));
}

TokenStream::Status TokenStream::Next(StreamEvent& event,
                                      std::optional<std::chrono::milliseconds> timeout) {
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return !events_.empty() || unfinished_ == 0; };
  if (!timeout) {
    arrived_.wait(lock, ready);
  } else if (!ready() && (timeout->count() == 0 || !arrived_.wait_for(lock, *timeout, ready))) {
    return Status::kTimeout;
  }
  if (events_.empty()) return Status::kDone;
  event = std::move(events_[next_++]);
  if (next_ == events_.size()) {
    events_.clear();
    next_ = 0;
  }
  return Status::kEvent;
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

ChoiceResult TokenStream::result(int choice) const {
  const std::lock_guard lock(mutex_);
  return results_[static_cast<size_t>(choice)];
}

std::vector<PromptLogprob> TokenStream::prompt_logprobs() const {
  const std::lock_guard lock(mutex_);
  return prompt_logprobs_;
}

template <typename F>
void TokenStream::Push(StreamEvent event, F change) {
  std::shared_ptr<const std::function<void()>> notify;
  event.time = std::chrono::steady_clock::now();
  {
    const std::lock_guard lock(mutex_);
    change();
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
  StreamEvent event{StreamEvent::Kind::kProgress, 0, {}, {}};
  event.prefilled = done;
  event.to_prefill = total;
  Push(std::move(event), [] {});
}

void TokenStream::PushPrompt(std::vector<PromptLogprob> logprobs) {
  Push({StreamEvent::Kind::kPrompt, 0, {}, {}}, [&] { prompt_logprobs_ = std::move(logprobs); });
}

bool TokenStream::PushToken(int choice, const CommittedToken& token, bool last) {
  StreamEvent event{StreamEvent::Kind::kToken, choice, token, {}};
  bool stopped = false;
  last_tokens_[static_cast<size_t>(choice)] = token.token;
  if (!decoders_.empty()) {
    IncrementalDecoder& decoder = *decoders_[static_cast<size_t>(choice)];
    event.text = decoder.Push(token.token);
    stopped = decoder.stopped();
    if (last && !stopped) event.text += decoder.Finish();
    stopped = stopped || decoder.stopped();
  }
  Push(std::move(event), [] {});
  return !stopped;
}

void TokenStream::PushSteps(int choice, std::vector<TraceEvent> steps) {
  Push({StreamEvent::Kind::kSteps, choice, {}, {}, std::move(steps)}, [] {});
}

void TokenStream::End(int choice, ChoiceResult result) {
  StreamEvent event{StreamEvent::Kind::kEnd, choice, {}, {}};
  result.last_token = last_tokens_[static_cast<size_t>(choice)];
  if (!decoders_.empty()) {
    IncrementalDecoder& decoder = *decoders_[static_cast<size_t>(choice)];
    event.text = decoder.Finish();
    result.stop_string = decoder.stop_string();
  }
  Push(std::move(event), [&] {
    results_[static_cast<size_t>(choice)] = std::move(result);
    --unfinished_;
  });
}

}  // namespace loopspec

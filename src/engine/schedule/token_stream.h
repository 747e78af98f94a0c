// What one request has produced so far: filled by the engine's thread, read by any other.
//
// The engine never waits for a reader: events are kept until they are read. There are at most as
// many as the request may have tokens, so what a slow reader costs is bounded by its request.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "decode/request.h"
#include "text/incremental_decoder.h"

namespace loopspec {

// A signal that is not lost when nobody waits for it yet.
class Wakeup {
 public:
  void Signal();
  void Wait();

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  bool signalled_ = false;
};

// How likely a token of the prompt was after the tokens before it.
struct PromptLogprob {
  int32_t token = 0;
  float logprob = 0.0f;
  std::vector<TokenLogprob> top;
};

// Where the time of a choice went, from admission on; steps are shared with others.
struct RequestTimes {
  double prefill = 0;      // prompt, up to the first step
  double first_token = 0;  // to the first decoded token
  // From the read prompt to the last token. All R recurrences of the first token lie in it: a clock
  // that starts at the first token finds the pipeline full already.
  double decode = 0;
  // Over all steps: pre-layers, recurrences, post-layers with sampling, and the host's own work.
  double prelude = 0, recur = 0, readout = 0, host = 0;

  double busy() const { return prelude + recur + readout + host; }
};

// How one choice of a submission ended.
struct ChoiceResult {
  FinishReason finish_reason = FinishReason::kNone;
  std::string error;        // when the reason is kError: what went wrong
  std::string stop_string;  // kStop: the one that was met, or else ...
  int32_t last_token = -1;  // ... the token that ended the text
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, found computed
  int64_t decoded_tokens = 0;
  int preemptions = 0;       // times that it gave its pages up for others
  double queue_seconds = 0;  // from submission to admission
  RequestTimes times;
  DecodeStatistics statistics;
  std::vector<TraceEvent> trace;

  // Every token over the time since the prompt was read (docs/measuring.md, "The clock").
  double tokens_per_second() const {
    return times.decode > 0 ? static_cast<double>(decoded_tokens) / times.decode : 0.0;
  }
};

struct StreamEvent {
  enum class Kind {
    kPrompt,  // the prompt has been scored: TokenStream::prompt_logprobs
    kToken,
    kProgress,  // part of the prompt has been read: only where it is asked for
    kSteps,     // what a step did to the branches; only of requests with `trace`
    kEnd,       // of this choice: TokenStream::result
  };
  Kind kind = Kind::kToken;
  int choice = 0;
  CommittedToken token;
  // What may be shown now: empty while a character or stop string is incomplete. With kEnd: what
  // was held back when the choice was cancelled.
  std::string text;
  std::vector<TraceEvent> steps = {};
  std::chrono::steady_clock::time_point time = {};
  int64_t prefilled = 0, to_prefill = 0;  // kProgress: positions done, of all
};

class TokenStream {
 public:
  // Text is made where `tokenizer` is not null, which must outlive the stream.
  TokenStream(std::shared_ptr<const ResolvedRequest> request, std::shared_ptr<Wakeup> engine,
              const Tokenizer* tokenizer);

  // ---- For the reader ----
  enum class Status { kEvent, kTimeout, kDone };
  // Waits for the next event; kDone when all choices have ended and everything has been read.
  Status Next(StreamEvent& event, std::optional<std::chrono::milliseconds> timeout = std::nullopt);
  // The engine stops within a step and ends every choice with kCancelled. Safe at any time.
  void Cancel();
  // Called by the engine's thread whenever there is something to read, at once if there is: for
  // readers that must not wait. It must not wait either.
  void OnReady(std::function<void()> notify);

  const ResolvedRequest& request() const { return *request_; }
  int choices() const { return request_->choices; }
  // After the choice's kEnd.
  ChoiceResult result(int choice) const;
  // After kPrompt: for every token of the prompt but the first.
  std::vector<PromptLogprob> prompt_logprobs() const;

  // ---- For the engine ----
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  void PushProgress(int64_t done, int64_t total);
  void PushPrompt(std::vector<PromptLogprob> logprobs);
  // False when the text ends here, with a stop string. `last`: no token of this choice follows.
  bool PushToken(int choice, const CommittedToken& token, bool last);
  void PushSteps(int choice, std::vector<TraceEvent> steps);
  void End(int choice, ChoiceResult result);

 private:
  // Adds an event after `change`, as one for every reader.
  template <typename F>
  void Push(StreamEvent event, F change);

  const std::shared_ptr<const ResolvedRequest> request_;
  const std::shared_ptr<Wakeup> engine_;
  std::vector<std::unique_ptr<IncrementalDecoder>> decoders_;  // by choice; the engine's alone
  std::vector<int32_t> last_tokens_;                           // likewise
  std::atomic<bool> cancelled_{false};

  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  // Those from next_ on wait. A vector that is emptied when all are read: once it is as long as a
  // reader's delay, adding to it allocates nothing.
  std::vector<StreamEvent> events_;
  size_t next_ = 0;
  std::vector<ChoiceResult> results_;
  std::vector<PromptLogprob> prompt_logprobs_;
  int unfinished_;
  std::shared_ptr<const std::function<void()>> notify_;
};

}  // namespace loopspec

// What one submission has produced so far: filled by the engine's thread, read by any other.
//
// The engine never waits for a reader: events are kept until they are read. There are at most as
// many as the request may have tokens, so what a slow reader costs is bounded by its request.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "decode/request.h"
#include "engine/generate.h"
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

// How one choice of a submission ended.
struct ChoiceResult {
  FinishReason finish_reason = FinishReason::kNone;
  std::string error;  // when the reason is kError: what went wrong
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, found computed
  int64_t tokens = 0;         // decoded
  int set_aside = 0;          // times that it made room for others
  double queue_seconds = 0;   // from submission to admission
  GenerateTimes times;        // from admission on; steps are shared with others
  DecodeStatistics statistics;
  std::vector<TraceEvent> trace;
};

struct StreamEvent {
  enum class Kind {
    kPrompt,  // the prompt has been scored: TokenStream::prompt_logprobs
    kToken,
    kSteps,  // what a step did to the branches; only of requests with `trace`
    kEnd,    // of this choice: TokenStream::result
  };
  Kind kind = Kind::kToken;
  int choice = 0;
  CommittedToken token;
  std::string text;  // what may be shown now: empty while a character or stop string is incomplete
  std::vector<TraceEvent> steps = {};
};

class TokenStream {
 public:
  // Text is made where `tokenizer` is not null, which must outlive the stream.
  TokenStream(int choices, std::shared_ptr<Wakeup> engine, const Tokenizer* tokenizer,
              const IncrementalDecoder::Options& text);

  // ---- For the reader ----
  enum class Status { kEvent, kTimeout, kDone };
  // Waits for the next event; kDone when all choices have ended and everything has been read.
  Status Next(StreamEvent& event, std::optional<std::chrono::milliseconds> timeout = std::nullopt);
  // The engine stops within a step and ends every choice with kCancelled. Safe at any time.
  void Cancel();
  // Called by the engine's thread whenever there is something to read, at once if there is: for
  // readers that must not wait. It must not wait either.
  void OnReady(std::function<void()> notify);

  int choices() const { return static_cast<int>(results_.size()); }
  // After the choice's kEnd.
  ChoiceResult result(int choice) const;
  // After kPrompt: for every token of the prompt but the first.
  std::vector<PromptLogprob> prompt_logprobs() const;

  // ---- For the engine ----
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  void PushPrompt(std::vector<PromptLogprob> logprobs);
  // False when the text ends here, with a stop string. `last`: no token of this choice follows.
  bool PushToken(int choice, const CommittedToken& token, bool last);
  void PushSteps(int choice, std::vector<TraceEvent> steps);
  void End(int choice, ChoiceResult result);

 private:
  // Adds an event after `change`, as one for every reader.
  template <typename F>
  void Push(StreamEvent event, F change);

  const std::shared_ptr<Wakeup> engine_;
  std::vector<std::unique_ptr<IncrementalDecoder>> decoders_;  // by choice; the engine's alone
  std::atomic<bool> cancelled_{false};

  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<StreamEvent> events_;
  std::vector<ChoiceResult> results_;
  std::vector<PromptLogprob> prompt_logprobs_;
  int unfinished_;
  std::shared_ptr<const std::function<void()>> notify_;
};

}  // namespace loopspec

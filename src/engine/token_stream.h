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
#include "loopspec/stream.h"
#include "text/incremental_decoder.h"

namespace loopspec {

// What all streams share with the engine: a signal that is not lost when nobody waits for it yet,
// and a count.
class Wakeup {
 public:
  std::atomic<int64_t> unread_bytes{0};  // of events that no reader has taken

  void Signal();
  void Wait();

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  bool signalled_ = false;
};

// What a reader gets: as Stream::Next tells it.
struct StreamEvent {
  Stream::Status status = Stream::Status::kToken;
  Token token = {};                    // of other kinds its choice, and with kEnd its text
  std::vector<TraceEvent> trace = {};  // kTrace
  Stream::Progress progress = {};      // kProgress
};

// Whether a reader got something.
inline bool IsEvent(Stream::Status status) {
  return status != Stream::Status::kTimeout && status != Stream::Status::kDone;
}

class TokenStream {
 public:
  // Text is made where `tokenizer` is not null, which must outlive the stream.
  TokenStream(std::shared_ptr<const ResolvedRequest> request, std::shared_ptr<Wakeup> engine,
              const Tokenizer* tokenizer);
  ~TokenStream();

  // ---- For the reader ----
  // Waits for the next event and returns its status; kTimeout when none came in time, kDone when
  // all choices have ended and everything has been read.
  Stream::Status Next(StreamEvent& event,
                      std::optional<std::chrono::milliseconds> timeout = std::nullopt);
  // The engine stops within a step and ends every choice with kCancelled. Safe at any time.
  void Cancel();
  // Called by the engine's thread whenever there is something to read, at once if there is: for
  // readers that must not wait. It must not wait either.
  void OnReady(std::function<void()> notify);

  const ResolvedRequest& request() const { return *request_; }
  int choices() const { return request_->choices; }
  // After the choice's kEnd.
  Statistics statistics(int choice) const;
  // After kPrompt: for every token of the prompt but the first.
  std::vector<Token> prompt_logprobs() const;

  // ---- For the engine ----
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  void PushProgress(int64_t done, int64_t total);
  void PushPrompt(std::vector<Token> logprobs);
  // False when the text ends here, with a stop string. `last`: no token of this choice follows.
  bool PushToken(Token token, bool last);
  void PushTrace(int choice, std::vector<TraceEvent> trace);
  // Why and how well is known of the end; what stopped the text is filled in here.
  void End(int choice, Statistics statistics);

 private:
  // Adds an event after `change`, as one for every reader.
  template <typename F>
  void Push(StreamEvent event, F change);

  const std::shared_ptr<const ResolvedRequest> request_;
  const std::shared_ptr<Wakeup> engine_;
  std::vector<std::unique_ptr<IncrementalDecoder>> decoders_;  // by choice; the engine's alone
  std::vector<int32_t> last_tokens_;                           // by choice; the engine's alone
  std::atomic<bool> cancelled_{false};

  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  // Events from next_ on wait to be read. A vector that is emptied when all are read: once it is
  // as long as a reader's delay, adding to it allocates nothing.
  std::vector<StreamEvent> events_;
  size_t next_ = 0;
  std::vector<Statistics> statistics_;
  std::vector<Token> prompt_logprobs_;
  int unfinished_;
  std::shared_ptr<const std::function<void()>> notify_;
};

}  // namespace loopspec

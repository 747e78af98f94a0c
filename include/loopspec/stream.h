// A request under way.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "loopspec/token.h"
#include "loopspec/trace.h"

namespace loopspec {

// What a request has produced is kept until it is read, so a slow reader delays nobody. A stream
// that goes away cancels its request. One thread reads; any may cancel.
class Stream {
 public:
  enum class Status {
    kToken,     // there is a token
    kPrompt,    // the prompt is scored: see prompt_logprobs
    kProgress,  // part of the prompt is read: see progress; only where asked for
    kTrace,     // branches of token.choice changed: see trace; only where asked for
    kEnd,       // token.choice has ended: see statistics
    kTimeout,   // nothing yet
    kDone,      // all choices have ended and all has been read
  };
  // Waits for what comes next, forever or for a time. With EngineOptions::background off it takes
  // the engine's steps itself until there is something; with a timeout of 0 it only looks.
  Status Next(Token& token);
  Status Next(Token& token, std::chrono::milliseconds timeout);
  // Stops within a step, at whatever stage the request is. What was produced can still be read.
  void Cancel();
  // Calls `ready` whenever there is something to read, at once if there is; by the thread that
  // takes the engine's steps, so it must not wait.
  void OnReady(std::function<void()> ready);

  int choices() const;
  uint64_t seed() const;
  const std::vector<int32_t>& prompt() const;  // ids
  const std::vector<int>& depths() const;      // of its proposals; none: without drafts
  // After a choice's kEnd.
  Statistics statistics(int choice = 0) const;
  // After kPrompt: for every token of the prompt but the first.
  std::vector<Token> prompt_logprobs() const;
  // After kProgress: positions of the prompt that are read, of all.
  struct Progress {
    int64_t done = 0, total = 0;
  };
  Progress progress() const;
  // After kTrace: what is new.
  const std::vector<TraceEvent>& trace() const;

  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  ~Stream();

 private:
  friend class Engine;
  struct State;
  explicit Stream(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace loopspec

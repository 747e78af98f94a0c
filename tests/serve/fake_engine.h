// A CompletionEngine without a model: made-up tokens at a given pace, with errors on request.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "serve/api_error.h"
#include "serve/completion_engine.h"

namespace loopspec::test {

// Tokens are bytes: token b is the byte b, 256 begins a text, 257 ends one. The answer to every
// prompt is `answer`, over and over until max_tokens or a stop string, unless it ends by itself.
struct FakeEngineOptions {
  std::string answer = "abcdefghij";
  bool endless = true;      // false: the end of `answer` is the end of the text
  bool whole_text = false;  // an event has the text of the whole answer instead of one byte
  double token_seconds = 0;
  int fail_at = -1;        // an error instead of this token
  bool fail_busy = false;  // ... for want of room
  int queue = 1 << 20;     // requests that may run at once; more are refused
  int64_t context = 4096;
};

class FakeEngine : public serve::CompletionEngine {
 public:
  explicit FakeEngine(const FakeEngineOptions& options = {});
  ~FakeEngine() override;

  const serve::ModelFacts& facts() const override { return facts_; }
  std::unique_ptr<serve::EngineTask> Submit(serve::EngineRequest request,
                                            std::shared_ptr<serve::EventSink> sink) override;
  serve::EngineMetrics metrics() const override;
  std::vector<int32_t> Tokenize(std::string_view text, bool add_special) const override;
  std::string Detokenize(std::span<const int32_t> ids) const override;
  std::string TokenPiece(int32_t id) const override;
  std::string RenderChat(const OrderedJson& messages, const OrderedJson& arguments) const override;

  int running() const { return running_; }
  int cancelled() const { return cancelled_; }
  int submitted() const { return submitted_; }
  // Waits until nothing runs; false when that takes longer than `seconds`.
  bool WaitIdle(double seconds) const;
  // What the last request asked for.
  serve::EngineRequest last() const;

 private:
  struct Run;
  class Task;
  void Drive();
  bool Step(Run& run);
  serve::TokenEvent MakeToken(const Run& run, int32_t id) const;
  serve::FinishEvent MakeFinish(const Run& run, std::string reason) const;

  const FakeEngineOptions options_;
  serve::ModelFacts facts_;
  std::atomic<int> running_{0}, cancelled_{0}, submitted_{0};
  std::atomic<int64_t> tokens_{0};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Run>> runs_;
  serve::EngineRequest last_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace loopspec::test

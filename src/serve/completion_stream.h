// One request for text, from its checks to the last byte of its answer.
//
// The engine's thread only puts events into a queue; everything else happens on the connection's
// strand. When the client reads slowly the queue waits, and what has gathered leaves as one event
// per choice: a slow client holds at most its answer in memory and holds up nobody.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "serve/completion_engine.h"
#include "serve/service.h"
#include "serve/wire_text.h"
#include "serve/wire_types.h"
#include "serve/wire_write.h"

namespace loopspec::serve {

class CompletionStream : public std::enable_shared_from_this<CompletionStream> {
 public:
  struct Setup {
    std::shared_ptr<ServiceCore> core;  // the request has been counted in
    std::shared_ptr<CompletionEngine> engine;
    std::shared_ptr<ResponseWriter> writer;
    CompletionRequest request;
    ResponseHead head;
    HttpHeaders headers;  // of the answer
    RequestRecord record;
    std::chrono::steady_clock::time_point start;
  };
  explicit CompletionStream(Setup setup);

  // Checks the request against the model and hands it to the engine. Throws ApiException; then the
  // caller answers.
  void Run();

 private:
  using Clock = std::chrono::steady_clock;
  class Sink;

  struct PromptDone {
    std::vector<TokenEvent> tokens;
  };
  struct StepsDone {
    std::vector<StepEvent> steps;
  };
  struct ErrorEvent {
    std::string message;
    bool busy;
  };
  struct Event {
    int prompt;
    int choice;  // of that prompt
    Clock::time_point time;
    std::variant<PromptDone, TokenEvent, StepsDone, FinishEvent, ErrorEvent> what;
  };

  // What is known of one choice; `part` is what has not been written yet.
  struct Choice {
    ChoicePart part;
    Utf8Gate gate;
    ReasoningSplitter splitter{false};
    size_t offset = 0;  // characters in tokens that were written
    int64_t tokens = 0;
    std::optional<Clock::time_point> last_token;
    std::optional<EngineStatistics> statistics;
    bool touched = false;
  };

  std::vector<EngineRequest> Resolve();
  std::vector<int32_t> PromptIds(const PromptInput& prompt, const std::string& name) const;
  void CheckIds(const std::vector<int32_t>& ids, const std::string& name) const;
  int MaxTokens(int64_t prompt_tokens, const std::string& name) const;
  void CheckScores() const;
  EngineRequest ForPrompt(std::vector<int32_t> ids, const std::string& name) const;

  void Push(Event event);
  void Pump();
  void Absorb(Event& event);
  void AbsorbToken(Choice& choice, TokenEvent& token, Clock::time_point time);
  void FillPieces(TokenEvent& token) const;
  void AddText(Choice& choice, std::string_view bytes, bool last, std::string* shown);
  void Emit();
  void WriteStreamEvents();
  void BeginStream();
  void SendWhole();
  std::string PromptText(size_t index) const;
  Usage TotalUsage() const;
  Usage ChoiceUsage(const Choice& choice, size_t index) const;
  RunSummary Summary() const;
  double Seconds() const;

  void ClientGone();
  void TimeOut();
  void FailWith(const ApiError& error);
  void CancelTasks();
  void DropTasks();
  // True once: for the one who ends the request.
  bool Claim() { return !over_.exchange(true); }
  void Record(int status, std::string outcome, std::string error);

  const std::shared_ptr<ServiceCore> core_;
  // Let go when the request is over: the engine's thread may be the last to hold this stream, and
  // must not be the one to destroy the engine.
  std::shared_ptr<CompletionEngine> engine_;
  const std::shared_ptr<ResponseWriter> writer_;
  const CompletionRequest request_;
  const ResponseHead head_;
  const HttpHeaders headers_;
  const WriteOptions write_options_;
  RequestRecord record_;
  const Clock::time_point start_;

  // Set before the engine knows of the request, then only read.
  std::vector<std::vector<int32_t>> prompt_ids_;
  uint64_t seed_ = 0;

  std::mutex mutex_;  // guards what follows
  std::vector<Event> events_;
  bool scheduled_ = false;  // Pump has been posted
  bool cancelled_ = false;
  std::vector<std::unique_ptr<EngineTask>> tasks_;
  bool done_ = false;  // no task is kept any more

  // On the strand only, but for `over_`.
  std::vector<Choice> choices_;
  int unfinished_ = 0;
  bool begun_ = false;
  std::optional<Clock::time_point> first_token_, last_token_;
  std::atomic<bool> over_{false};
};

}  // namespace loopspec::serve

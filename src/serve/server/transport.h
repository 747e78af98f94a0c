// One request for text, from its submission to the last byte of its answer.
//
// The engine's thread only says that there is something to read; everything else happens on the
// connection's strand. When the client reads slowly the streams wait, and what has gathered leaves
// together: a slow client holds at most its answer in memory and holds up nobody.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "loopspec/engine.h"
#include "serve/http/message.h"
#include "serve/openai/text_call.h"
#include "serve/server/service.h"

namespace loopspec::serve {

class TextTransport : public std::enable_shared_from_this<TextTransport> {
 public:
  struct Setup {
    std::shared_ptr<ServiceCore> core;  // the request has been counted in
    std::shared_ptr<Engine> engine;
    std::shared_ptr<ResponseWriter> writer;
    TextCall call;
    HttpHeaders headers;  // of the answer
    RequestRecord record;
    std::chrono::steady_clock::time_point start;
  };
  explicit TextTransport(Setup setup);

  // Hands the requests to the engine. Throws ApiException; then the caller answers.
  void Run();
  // Ends it with an error that says so: the server stops. Any thread.
  void CutOff();

 private:
  using Clock = std::chrono::steady_clock;

  void Begin();
  void Wake();
  void Pump();
  void Read(size_t prompt);
  void ReadEnd(size_t prompt, const Token& last);
  void Measure(size_t prompt, const Token& token);
  void BeginStream();
  double Seconds() const;

  void ClientGone();
  void TimeOut();
  void Fail(const ApiError& error, std::string outcome = "error");
  // Says what became of the request and lets the engine go. An empty outcome: what ended the first
  // choice.
  void Finish(int status, std::string outcome, std::string error);

  const std::shared_ptr<ServiceCore> core_;
  const std::shared_ptr<ResponseWriter> writer_;
  const HttpHeaders headers_;
  const Clock::time_point start_;
  std::atomic<bool> scheduled_{false};  // Pump has been posted

  // On the strand only, once Run has returned. The engine and what holds it go when the request is
  // over: the engine's thread may be the last to hold this, and must not destroy the engine.
  std::shared_ptr<Engine> engine_;
  TextCall call_;
  std::vector<Stream> streams_;                               // by prompt
  std::vector<std::optional<Clock::time_point>> last_token_;  // by choice of all prompts
  RequestRecord record_;
  bool begun_ = false;
  bool over_ = false;
};

}  // namespace loopspec::serve

// An Engine as Python holds it: closed at any time from any thread, left alone in a forked child.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "answer.h"
#include "home_process.h"
#include "loopspec/loopspec.h"

namespace loopspec::python {

class EngineHandle {
 public:
  // Loads, while Python's lock is away. Ctrl-C ends the wait at once; what was being loaded is
  // dropped when it is there.
  explicit EngineHandle(const EngineOptions& options);
  ~EngineHandle();
  EngineHandle(const EngineHandle&) = delete;
  EngineHandle& operator=(const EngineHandle&) = delete;

  // Throws ClosedError or ForkedError. Held for the length of a call, not while an answer is
  // awaited: closing then ends the answer.
  std::shared_ptr<Engine> Get() const;
  // Cancels what is under way and gives all memory back. Without Python's lock.
  void Close();
  bool closed() const;

  // The request with its prompt as ids. Stops for signals. Without Python's lock.
  Request Encoded(Request request) const;
  Stream Submit(const Request& request) const;

  // All of these, as many at once as the engine takes; answers in the same order. `progress` is
  // called now and then with requests and tokens done, `finished` once for every request when it
  // has ended; both without Python's lock, and both may throw. What a request fails of is in its
  // answer. Without Python's lock.
  struct Hooks {
    std::function<void(size_t done, int64_t tokens)> progress = {};
    std::function<void(size_t request, const Answer& answer)> finished = {};
  };
  std::vector<Answer> Run(const std::vector<Request>& requests, const Hooks& hooks) const;

  const ModelFacts& facts() const { return facts_; }
  const HomeProcess& process() const { return process_; }

 private:
  HomeProcess process_;
  mutable std::mutex mutex_;
  std::shared_ptr<Engine> engine_;  // null: closed
  ModelFacts facts_;                // outlives it
};

}  // namespace loopspec::python

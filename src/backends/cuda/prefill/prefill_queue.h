// Prompts one after the other beside the steps: a thread of its own puts their kernels on a stream
// of their own, because there are more of them than the driver takes at once.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "backends/cuda/prefill/prefill.h"

namespace loopspec::cuda {

class PrefillQueue {
 public:
  PrefillQueue(const DeviceModel& model, const PromptMemory& memory, const KeptPlanes& kept,
               const BackendOptions& options, const PrefillSettings& settings, int device);
  // Waits for what was submitted.
  ~PrefillQueue();

  Ticket Submit(std::span<const PrefillPlan> parts);
  // True also when the prompt failed: Wait throws then.
  bool Done(Ticket ticket);
  void Wait(Ticket ticket);
  void Score(const PrefillPlan& plan, const LogitsSink& sink);

 private:
  struct Entry {
    PromptJob job;
    const LogitsSink* sink = nullptr;
    bool launched = false;
    std::exception_ptr error;
  };
  Ticket Push(std::span<const PrefillPlan> parts, const LogitsSink* sink);
  void Work();

  int device_;
  Prefiller prefiller_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Ticket, std::unique_ptr<Entry>> entries_;  // submitted and not awaited
  std::vector<std::unique_ptr<Entry>> spare_;         // whose memory is used again
  std::deque<Entry*> waiting_;
  Ticket next_ticket_ = 1;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace loopspec::cuda

#include "backends/cuda/prefill/prefill_queue.h"

#include "base/check.h"

namespace loopspec::cuda {

PrefillQueue::PrefillQueue(const DeviceModel& model, const PromptMemory& memory,
                           const KeptPlanes& kept, const BackendOptions& options,
                           const PrefillSettings& settings, int device)
    : device_(device),
      prefiller_(model, memory, kept, options, settings, device),
      thread_([this] { Work(); }) {}

PrefillQueue::~PrefillQueue() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  cudaStreamSynchronize(prefiller_.stream());
}

Ticket PrefillQueue::Push(std::span<const PrefillPlan> parts, const LogitsSink* sink) {
  EncodedPrompt prompt = prefiller_.Encode(parts);
  std::unique_ptr<Entry> entry;
  Ticket ticket;
  {
    const std::lock_guard lock(mutex_);
    if (!spare_.empty()) {
      entry = std::move(spare_.back());
      spare_.pop_back();
    }
    ticket = next_ticket_++;
  }
  if (!entry) entry = std::make_unique<Entry>();
  entry->job.prompt = std::move(prompt);
  entry->sink = sink;
  entry->launched = false;
  entry->error = nullptr;
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(entry.get());
    entries_.emplace(ticket, std::move(entry));
  }
  changed_.notify_all();
  return ticket;
}

void PrefillQueue::Work() {
  (void)cudaSetDevice(device_);
  while (true) {
    Entry* entry;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      entry = waiting_.front();
      waiting_.pop_front();
    }
    std::exception_ptr error;
    try {
      prefiller_.Run(entry->job, entry->sink);
    } catch (...) {
      error = std::current_exception();
      // What was launched of it still reads the job's memory, which goes when the error is told.
      (void)cudaStreamSynchronize(prefiller_.stream());
    }
    {
      const std::lock_guard lock(mutex_);
      entry->error = error;
      entry->launched = true;
    }
    changed_.notify_all();
  }
}

Ticket PrefillQueue::Submit(std::span<const PrefillPlan> parts) {
  return Push(parts, nullptr);
}

bool PrefillQueue::Done(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(ticket);
  LOOPSPEC_CHECK(found != entries_.end());
  const Entry& entry = *found->second;
  return entry.launched &&
         (entry.error != nullptr || cudaEventQuery(entry.job.done.get()) != cudaErrorNotReady);
}

void PrefillQueue::Wait(Ticket ticket) {
  std::unique_ptr<Entry> entry;
  {
    std::unique_lock lock(mutex_);
    const auto found = entries_.find(ticket);
    LOOPSPEC_CHECK(found != entries_.end());
    changed_.wait(lock, [&] { return found->second->launched; });
    entry = std::move(found->second);
    entries_.erase(found);
  }
  if (entry->error) std::rethrow_exception(entry->error);
  Check(cudaEventSynchronize(entry->job.done.get()), "waiting for a prompt");
  const std::lock_guard lock(mutex_);
  spare_.push_back(std::move(entry));
}

void PrefillQueue::Score(const PrefillPlan& plan, const LogitsSink& sink) {
  Wait(Push({&plan, 1}, &sink));
}

}  // namespace loopspec::cuda

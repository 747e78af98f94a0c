// Many requests over one backend.
//
// One thread drives: it alone touches the backend, the ledger and the decoders. Others submit and
// read streams. Each choice of a request is a Sequence (sequence.h), and these are the parts:
//
//   schedule.h     the policy: what comes next, as a pure function of a view of all sequences
//   turns.h        the policy of a step: whose sequences take part in it
//   tenants.h      who asks, and what each of them got
//   admission.h    sequences are admitted, preempted (swapped out) and resumed (swapped in)
//   prefill.h      chunked prefill of one prompt at a time
//   decode_step.h  one step with rows of all sequences that decode
//   ../pages/          KV pages of sequences, and prefix hits
//   ../token_stream.h  what a reader gets
//
// A scheduling step (Step) takes in what was submitted or cancelled, asks the policy for a plan,
// carries it out, makes a step of decoding and delivers the tokens.
//
// No request can fail another: what it may ask for is checked in Submit, by its own thread, and
// what goes wrong with a sequence ends that one alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "base/timer.h"
#include "decode/step_cost.h"
#include "engine/pages/kv_pages.h"
#include "engine/schedule/admission.h"
#include "engine/schedule/decode_step.h"
#include "engine/schedule/prefill.h"
#include "engine/schedule/schedule.h"
#include "engine/schedule/sequence.h"
#include "engine/schedule/tenants.h"
#include "engine/schedule/turns.h"
#include "engine/token_stream.h"
#include "kv/ledger.h"
#include "loopspec/metrics.h"
#include "loopspec/queue_full.h"

namespace loopspec {

struct SchedulerOptions {
  int max_running = 0;  // sequences admitted at once; 0: a quarter of the backend's cells
  int max_queued = 1024;
  int max_rows = 0;          // rows of a step at most; 0: as many as the backend holds
  int prefill_chunk = 0;     // positions; 0: what the backend prefers
  int64_t cache_bytes = -1;  // see KvPages
  StepCost cost;             // of the backend's steps; without it rows are taken as free
  // Called at the end where steps have shown other proportions between row counts than `cost` has.
  std::function<void()> on_wrong_cost = {};
  const Tokenizer* tokenizer = nullptr;  // makes text of tokens; null: ids alone
  // See schedule.h. Tests that count steps leave out what goes by time.
  size_t first_tokens = 32;  // of an answer, beside which chunks of long prompts hold back
  double short_wait = 1;     // seconds that a short request waits for a place
};

class Scheduler {
 public:
  explicit Scheduler(Backend& backend, const SchedulerOptions& options = {});
  // Ends every request that is left as cancelled.
  ~Scheduler();

  // Any thread. Throws Error for what cannot be served here at all, QueueFull when too many wait.
  std::shared_ptr<TokenStream> Submit(ResolvedRequest request);
  EngineMetrics state() const;

  // Starts the thread that drives. Without it, the thread that calls Step does.
  void Start();
  // One scheduling step; false when there was nothing to do.
  bool Step();

 private:
  // What other threads write or read.
  struct Shared {
    mutable std::mutex mutex;
    Sequences inbox;
    int waiting = 0;  // in inbox and sequences_
    uint64_t submissions = 0;
    EngineMetrics published;
  };

  void Check(const ResolvedRequest& request) const;
  void TakeIn();
  void DropCancelled();

  // Asks the policy for a plan; `admission_open` as in ScheduleView.
  Plan MakePlan(bool admission_open);
  // Carries its parts out. False: one did not fit, and those after it were not tried.
  bool AdmitThose(const std::vector<Admit>& admit);
  bool AdmitOne(Sequence& sequence);
  void ChunkOf(const Plan& plan);
  void PreemptFor(const Plan& plan);
  void FinishChunk();  // waits
  void Preempt(Sequence& sequence);

  void Decode();
  void ChooseTurns();  // leaves in decoding_ those that take part in the step
  void Deliver(Sequence& sequence);
  void End(Sequence& sequence, FinishReason reason, const std::string& error = {});
  // Calls part(), whose error ends the sequence. False when it did.
  template <typename F>
  bool Guard(Sequence& sequence, F part);
  void Sweep();
  void Publish();

  Backend& backend_;
  const SchedulerOptions options_;  // with every default filled in
  KvLedger ledger_;
  Sequences sequences_;
  KvPages pages_;
  DecodeStep step_;
  Admission admission_;
  Prefill prefill_;
  Pacing pacing_;
  Tenants tenants_;
  std::vector<SequenceView> views_;  // of sequences_, for the plan at hand
  std::vector<Sequence*> decoding_;  // in the step at hand
  TurnSchedule turns_;
  EngineMetrics counters_;

  const std::shared_ptr<Wakeup> wakeup_ = std::make_shared<Wakeup>();
  Shared shared_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace loopspec

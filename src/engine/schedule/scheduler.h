// Many requests over one backend.
//
// One thread drives: it alone touches the backend, the ledger and the decoders. Others submit and
// read streams. A turn takes in what was submitted or cancelled, admits what fits, prefills one
// chunk of one prompt, and makes one step with rows of all requests that decode. So between two
// steps of a stream lie at most one chunk and one step; and between two chunks every stream gets a
// token, on average, so that many prompts do not hold up the streams either.
//
// Room. A request is admitted when its prompt has pages and a page is left for every other one;
// then it takes pages as it grows. When none are left, cached prefixes go first, then the youngest
// request is set aside: its keys and values wait in host memory, and it goes on with the same bits
// before any new request is admitted. The oldest is never set aside, so everybody gets through.
//
// No request can fail another: what it may ask for is checked in Submit, by its own thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "base/timer.h"
#include "decode/loopspec.h"
#include "decode/row_choice.h"
#include "decode/step_cost.h"
#include "engine/load/step_cost.h"
#include "engine/schedule/page_room.h"
#include "engine/schedule/token_stream.h"
#include "kv/ledger.h"
#include "loopspec/queue_full.h"

namespace loopspec {

// For tests and calibrations, which look at steps and meddle with them.
struct SchedulerHooks {
  // Before each step is planned, for every decoder in it: may choose other rows or evict branches.
  std::function<void(LoopSpec& decoder)> before_step = {};
  // After each step, while the backend still has its logits.
  std::function<void(const StepPlan& plan, const StepResult& result)> after_step = {};
};

struct SchedulerOptions {
  int max_running = 0;  // requests admitted at once; 0: a quarter of the backend's cells
  int max_queued = 1024;
  int max_rows = 0;          // rows of a step at most; 0: as many as the backend holds
  int prefill_chunk = 0;     // positions; 0: what the backend prefers
  int64_t cache_bytes = -1;  // see PageRoom
  StepCost cost;             // of the backend's steps; without it rows are taken as free
};

struct Submission {
  // `choice` counts from it; `row_budget` is at most the scheduler's, and counts for a request that
  // has the step to itself. max_tokens may be 0: the prompt is only scored.
  DecodeRequest request = {};
  int choices = 1;
  int prompt_logprobs = -1;  // -1: none; n: of the prompt's tokens, and the n likeliest ones
  const Tokenizer* tokenizer = nullptr;  // makes text of the tokens; null: ids alone
  IncrementalDecoder::Options text = {};
  // Tells how far the prompt is (kPrefilled), which is cut so that something is told about ten
  // times a second.
  bool report_prefill = false;
};

// Where the engine stands, for people and for metrics. Counters run from the start.
struct SchedulerState {
  int waiting = 0, prefilling = 0, decoding = 0, set_aside = 0;  // choices now
  int pages = 0, pages_free = 0, pages_cached = 0;               // cached ones may be in use too
  int cells = 0, cells_free = 0;
  int64_t steps = 0, rows = 0;  // steps made, rows in them
  int64_t prompt_tokens = 0, cached_tokens = 0, decoded_tokens = 0;
  int64_t finished = 0, cancelled = 0, failed = 0;  // choices
  int64_t times_set_aside = 0;
  std::vector<int64_t> accepted;  // decoded tokens by proposal, of choices that have ended
  int64_t fallback = 0;
};

class Scheduler {
 public:
  explicit Scheduler(Backend& backend, const SchedulerOptions& options = {});
  // Ends every request that is left as cancelled.
  ~Scheduler();

  // Any thread. Throws Error for what cannot be served here at all, QueueFull when too many wait.
  std::shared_ptr<TokenStream> Submit(const Submission& submission);
  SchedulerState state() const;

  // Starts the thread that drives. Without it, whoever calls Turn does.
  void Start();
  // One turn; false when there was nothing to do.
  bool Turn();
  // Between two turns.
  void set_hooks(SchedulerHooks hooks) { hooks_ = std::move(hooks); }

 private:
  struct Task;
  using Tasks = std::vector<std::unique_ptr<Task>>;

  void Check(const Submission& submission) const;
  void TakeIn();
  void DropCancelled();

  // Admission.
  void Admit();
  bool TryAdmit(Task& task);
  bool TryResume(Task& task);
  const Task* Sibling(const Task& task) const;  // another choice of its submission, if admitted
  static void InsertByAge(std::unique_ptr<Task> task, Tasks& tasks);

  // Cells: shared out anew when the number of requests has changed.
  bool HaveCell();
  void ShareCells();
  void LimitBranches(size_t requests);

  // Prompts.
  void StartPrefill();
  bool PrefillDone();
  void FinishPrefill();  // waits
  void EndPrefill(Task& task);

  // Steps.
  void MakeRoom();
  bool MakeRoom(Task& task);
  void SetAside(Task& task);
  void Choose();
  void ChooseDrafting();
  void AwaitEachOther();
  int RowLimit() const;
  void Step();
  void Observe(const StepResult& step, int64_t planes);
  void Deliver(Task& task);

  void End(Task& task, FinishReason reason, const std::string& error = {});
  void Sweep();
  void Publish();

  Backend& backend_;
  const SchedulerOptions options_;
  const int max_running_, max_rows_, chunk_;
  StepCostTracker cost_;
  KvLedger ledger_;
  PageRoom room_;
  RowChooser chooser_;
  StepPlan plan_;
  std::vector<RowState> rows_;
  std::vector<char> advance_;

  std::deque<std::unique_ptr<Task>> queue_;
  Tasks active_;                 // being prefilled or decoded, the oldest first
  Tasks aside_;                  // the oldest first
  std::vector<Task*> decoding_;  // the rows of the step at hand are theirs
  Task* prefilling_ = nullptr;   // a chunk of it is in flight ...
  Ticket prefill_ticket_ = 0;
  int64_t chunk_end_ = 0;            // ... and ends here
  Timer chunk_timer_;                // since it was begun
  bool drafting_ = true;             // requests whose drafts are optional make them
  bool in_phase_ = false;            // nobody drafts: all begin their tokens together
  int64_t since_chunk_ = INT32_MAX;  // recurrences since a chunk was begun ...
  int64_t decoded_at_chunk_ = 0;     // ... and tokens that had been decoded by then
  int64_t turn_ = 0;
  size_t sharing_ = 0;  // requests that the cells are divided between; 0: to be done anew
  SchedulerState counters_;
  SchedulerHooks hooks_;

  // ---- Between threads ----
  const std::shared_ptr<Wakeup> wakeup_ = std::make_shared<Wakeup>();
  mutable std::mutex mutex_;  // of what follows
  std::vector<std::unique_ptr<Task>> inbox_;
  int waiting_ = 0;  // in inbox_ and queue_
  uint64_t submissions_ = 0;
  SchedulerState published_;

  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace loopspec

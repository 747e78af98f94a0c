#include "engine/schedule/scheduler.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "decode/load_choice.h"
#include "engine/schedule/prompt_scores.h"
#include "engine/schedule/scheduler_task.h"

namespace loopspec {

namespace {

// Stands for a chunk that was scored, which waits for itself.
constexpr Ticket kScored = ~Ticket{0};

// How much longer than without drafts a recurrence may take while somebody awaits a first token.
constexpr double kFirstTokenDelay = 1.25;

// Parts of a prompt whose progress is reported double until one takes so long.
constexpr double kReportSeconds = 0.1;

int Default(int value, int otherwise) {
  return value > 0 ? value : otherwise;
}

}  // namespace

Scheduler::Scheduler(Backend& backend, const SchedulerOptions& options)
    : backend_(backend),
      options_(options),
      max_running_(std::clamp(Default(options.max_running, backend.options().cells / 4), 1,
                              std::max(1, backend.options().cells / 2))),
      max_rows_(
          std::min(Default(options.max_rows, backend.options().cells), backend.options().cells)),
      chunk_(Default(options.prefill_chunk, backend.PrefillChunk())),
      cost_(options.cost),
      ledger_(backend.pages(), backend.options().cells),
      room_(backend, ledger_, options.cache_bytes),
      chooser_(backend.spec().recurrence, static_cast<int>(backend.options().readout_depths.size()),
               backend.options().cells) {
  // Room for the largest step there can be, so that few allocate.
  const auto rows = static_cast<size_t>(backend.options().cells);
  plan_.sequences.reserve(static_cast<size_t>(max_running_));
  plan_.commits.reserve(rows);
  plan_.rows.reserve(rows);
  plan_.readouts.reserve(rows);
  plan_.chains.reserve(rows * std::min<size_t>(64, rows));
  rows_.reserve(rows);
  advance_.reserve(rows);
  Publish();
}

Scheduler::~Scheduler() {
  stopping_ = true;
  wakeup_->Signal();
  if (thread_.joinable()) thread_.join();
  TakeIn();
  if (prefilling_ != nullptr) FinishPrefill();
  for (auto& task : queue_) End(*task, FinishReason::kCancelled);
  for (auto& task : active_) End(*task, FinishReason::kCancelled);
  for (auto& task : aside_) End(*task, FinishReason::kCancelled);
}

void Scheduler::Start() {
  LOOPSPEC_CHECK(!thread_.joinable());
  thread_ = std::thread([this] {
    while (!stopping_) {
      if (!Turn()) wakeup_->Wait();
    }
  });
}

// ---- From other threads ----

void Scheduler::Check(const Submission& submission) const {
  const DecodeRequest& request = submission.request;
  if (submission.choices < 1 || submission.choices > options_.max_queued)
    Fail("n is {}, expected 1 to {}", submission.choices, options_.max_queued);
  if (submission.prompt_logprobs < -1)
    Fail("prompt logprobs is {}, expected 0 or more, or -1 for none", submission.prompt_logprobs);
  CheckRequest(request, backend_.spec(), backend_.options());
  CheckLimits(request, backend_.limits());
  const int64_t positions = static_cast<int64_t>(request.prompt.size()) + request.max_tokens;
  if (PagesFor(positions) > backend_.pages()) {
    Fail("a prompt of {} tokens and {} new ones make {} positions, the key/value memory holds {}",
         request.prompt.size(), request.max_tokens, positions,
         int64_t{backend_.pages()} * kPageSize);
  }
}

std::shared_ptr<TokenStream> Scheduler::Submit(const Submission& submission) {
  Check(submission);
  auto stream = std::make_shared<TokenStream>(submission.choices, wakeup_, submission.tokenizer,
                                              submission.text);
  std::vector<std::unique_ptr<Task>> tasks;
  for (int i = 0; i < submission.choices; ++i) {
    auto task = std::make_unique<Task>();
    task->choice = i;
    task->request = submission.request;
    task->request.choice = submission.request.choice + static_cast<uint32_t>(i);
    task->request.row_budget =
        std::min(Default(submission.request.row_budget, max_rows_), max_rows_);
    task->prompt_logprobs = i == 0 ? submission.prompt_logprobs : -1;
    task->score_only = submission.request.max_tokens == 0;
    task->report_prefill = i == 0 && submission.report_prefill;
    task->stream = stream;
    task->result.prompt_tokens = static_cast<int64_t>(task->request.prompt.size());
    tasks.push_back(std::move(task));
  }
  {
    const std::lock_guard lock(mutex_);
    if (waiting_ + submission.choices > options_.max_queued) {
      throw QueueFull(fmt::format("{} requests wait already, no more than {} may: try again later",
                                  waiting_, options_.max_queued));
    }
    waiting_ += submission.choices;
    ++submissions_;
    for (auto& task : tasks) {
      task->submission = submissions_;
      inbox_.push_back(std::move(task));
    }
  }
  wakeup_->Signal();
  return stream;
}

SchedulerState Scheduler::state() const {
  const std::lock_guard lock(mutex_);
  SchedulerState state = published_;
  state.waiting = waiting_;
  return state;
}

// ---- A turn ----

bool Scheduler::Turn() {
  ++turn_;
  bool busy = true;
  try {
    TakeIn();
    DropCancelled();
    Admit();
    ShareCells();
    StartPrefill();
    // A chunk may run beside one step, and is then waited for: a device that prefers steps would
    // leave prompts waiting for as long as anybody decodes.
    if (PrefillDone() || (prefilling_ != nullptr && prefilling_->last_chunk < turn_))
      FinishPrefill();
    MakeRoom();
    busy = !active_.empty() || !aside_.empty() || !queue_.empty();
    Step();
    if (prefilling_ != nullptr && (decoding_.empty() || PrefillDone())) FinishPrefill();
  } catch (const std::exception& error) {  // no memory
    if (prefilling_ != nullptr) FinishPrefill();
    for (const auto& task : active_) End(*task, FinishReason::kError, error.what());
  }
  Sweep();
  Publish();
  return busy;
}

void Scheduler::TakeIn() {
  const std::lock_guard lock(mutex_);
  for (auto& task : inbox_) queue_.push_back(std::move(task));
  inbox_.clear();
}

void Scheduler::DropCancelled() {
  const auto drop = [&](auto& tasks) {
    for (auto& task : tasks) {
      if (!task->stream->cancelled()) continue;
      if (task.get() == prefilling_) FinishPrefill();
      End(*task, FinishReason::kCancelled);
    }
  };
  drop(queue_);
  drop(active_);
  drop(aside_);
  Sweep();
}

// ---- Prompts ----

// The next chunk for whoever has waited longest; between equals for the younger, which is the newer
// one and may be short. Nobody waits forever: who comes later has waited less.
void Scheduler::StartPrefill() {
  if (prefilling_ != nullptr) return;
  Task* next = nullptr;
  int64_t decoding = 0;
  for (const auto& task : active_) {
    decoding += task->stage == Task::Stage::kDecode ? 1 : 0;
    if (task->stage != Task::Stage::kPrefill) continue;
    if (next == nullptr || task->last_chunk <= next->last_chunk) next = task.get();
  }
  // With drafts a step is a few recurrences. The streams' turn lasts until they have a token each,
  // or for as long as one takes without drafts: those recurrences have many rows, and prompts that
  // wait for all R of them wait much longer than drafts gain.
  const bool turn_of_streams = since_chunk_ < backend_.spec().recurrence &&
                               counters_.decoded_tokens - decoded_at_chunk_ < decoding;
  if (next == nullptr || turn_of_streams) return;
  since_chunk_ = 0;
  decoded_at_chunk_ = counters_.decoded_tokens;
  next->last_chunk = turn_;
  const std::span<const int32_t> prompt = next->to_prefill();
  if (next->prompt_logprobs < 0) {
    // Another prompt that begins alike may have come further since this one was admitted.
    const int64_t known = room_.RetakePrefix(prompt, next->prefilled, next->decoder->pages());
    next->result.cached_tokens += known - next->prefilled;
    counters_.cached_tokens += known - next->prefilled;
    next->prefilled = next->committed = known;
    if (known == std::ssize(prompt)) return EndPrefill(*next);
  }
  const auto start = static_cast<size_t>(next->prefilled);
  const int part = next->report_prefill ? next->part : chunk_;
  const size_t length = std::min(static_cast<size_t>(part), prompt.size() - start);
  const PrefillPlan plan{{next->decoder->pages().pages().data()},
                         static_cast<int32_t>(start),
                         prompt.subspan(start, length)};
  chunk_end_ = static_cast<int64_t>(start + length);
  chunk_timer_.Reset();
  try {
    if (next->prompt_logprobs >= 0) {
      ScorePrompt(backend_, plan, next->request.prompt, next->prompt_logprobs, next->scores);
      prefill_ticket_ = kScored;
    } else {
      prefill_ticket_ = backend_.SubmitPrefill({&plan, 1});
    }
    prefilling_ = next;
  } catch (const std::exception& error) {
    End(*next, FinishReason::kError, error.what());
  }
}

bool Scheduler::PrefillDone() {
  return prefilling_ != nullptr &&
         (prefill_ticket_ == kScored || backend_.PrefillDone(prefill_ticket_));
}

void Scheduler::FinishPrefill() {
  Task& task = *std::exchange(prefilling_, nullptr);
  try {
    if (prefill_ticket_ != kScored) backend_.WaitPrefill(prefill_ticket_);
  } catch (const std::exception& error) {
    return End(task, FinishReason::kError, error.what());
  }
  task.prefilled = task.committed = chunk_end_;
  const std::span<const int32_t> prompt = task.to_prefill();
  // At once, not at the prompt's end: others with the same beginning may be waiting for their turn.
  room_.KeepPrefix(prompt.first(static_cast<size_t>(chunk_end_)), task.decoder->pages());
  if (chunk_end_ == std::ssize(prompt)) return EndPrefill(task);
  if (!task.report_prefill) return;
  if (chunk_timer_.Seconds() < kReportSeconds) task.part *= 2;
  task.stream->PushPrefilled(chunk_end_, std::ssize(prompt));
}

void Scheduler::EndPrefill(Task& task) {
  task.result.times.prefill = task.admitted.Seconds();
  task.stage = Task::Stage::kDecode;
}

// ---- Steps ----

// Whether drafts gain anything at this load; what has been begun goes on either way.
void Scheduler::ChooseDrafting() {
  LoadQuestion question;
  question.sequences = static_cast<int>(decoding_.size());
  question.recurrence = backend_.spec().recurrence;
  question.most_rows = max_rows_;
  double drafting = 0, first_depth = 0, second_depth = 0, first = 0, second = 0, context = 0;
  bool all_optional = true;
  for (const Task* task : decoding_) {
    const LoopSpec& decoder = *task->decoder;
    context += static_cast<double>(decoder.decided());
    if (decoder.depths().empty()) continue;
    all_optional = all_optional && decoder.drafts_are_optional();
    ++drafting;
    first_depth += decoder.depths()[0];
    first += decoder.DraftShare(0);
    question.proposals = static_cast<int>(decoder.depths().size());
    second_depth += decoder.depths().size() > 1 ? decoder.depths()[1] : question.recurrence;
    second += decoder.depths().size() > 1 ? decoder.DraftShare(1) : 0.0;
  }
  if (question.sequences < 2 || drafting == 0) {
    drafting_ = true;
  } else {
    question.context = context / question.sequences;
    question.first_depth = first_depth / drafting;
    question.second_depth = second_depth / drafting;
    question.first = first / drafting;
    question.second = second / drafting;
    const double with = DraftingRate(question, cost_.cost());
    const double without = PlainRate(question, cost_.cost());
    // Not back and forth for a gain within the error of the estimate.
    drafting_ = with > (drafting_ ? 1.0 : 1.03) * without;
  }
  for (Task* task : decoding_) {
    if (task->decoder->drafts_are_optional()) task->decoder->set_drafting(drafting_);
  }
  in_phase_ = !drafting_ && all_optional;
}

// Without drafts a token is one step of R recurrences if all begin together. So whoever is about to
// begin waits for those under way, R - 1 recurrences at most; and nobody waits for a group.
void Scheduler::AwaitEachOther() {
  const bool wait =
      std::any_of(rows_.begin(), rows_.end(), [](const RowState& row) { return row.depth > 0; });
  for (RowState& row : rows_) row.held = wait && row.depth == 0;
}

// Rows of a step at most. All R recurrences of a first token lie before it, and drafts of others,
// which make them longer, gain nothing there: so while one is awaited only as many advance as cost
// little. The other drafts wait.
int Scheduler::RowLimit() const {
  const int roots = static_cast<int>(decoding_.size());
  const int limit = std::max(max_rows_, roots);
  if (std::none_of(decoding_.begin(), decoding_.end(),
                   [](const Task* task) { return task->reported == 0; }))
    return limit;
  const double longest = kFirstTokenDelay * cost_.cost().Recurrence(roots);
  int rows = roots;
  while (rows < limit && cost_.cost().Recurrence(rows + 1) <= longest) ++rows;
  return rows;
}

// Which branches of all requests advance. One that has the step to itself has chosen already.
void Scheduler::Choose() {
  ChooseDrafting();
  if (decoding_.size() < 2) return;
  rows_.clear();
  for (size_t i = 0; i < decoding_.size(); ++i) {
    decoding_[i]->decoder->ListRows(static_cast<int32_t>(i), rows_);
  }
  if (in_phase_) AwaitEachOther();
  chooser_.Choose(rows_, RowLimit(), cost_.cost(), advance_);
  size_t at = 0;
  for (Task* task : decoding_) {
    const auto count = static_cast<size_t>(task->decoder->tree().size());
    task->decoder->Choose(std::span(advance_).subspan(at, count));
    at += count;
  }
}

void Scheduler::Step() {
  decoding_.clear();
  for (const auto& task : active_) {
    if (task->stage == Task::Stage::kDecode) decoding_.push_back(task.get());
  }
  // Whose prompt alone was asked for.
  std::erase_if(decoding_, [&](Task* task) {
    if (task->score_only) Deliver(*task);
    return task->score_only;
  });
  if (decoding_.empty()) return;
  const Timer host;
  Choose();
  if (hooks_.before_step) {
    for (Task* task : decoding_) hooks_.before_step(*task->decoder);
  }
  plan_.Clear();
  plan_.recurrences = backend_.spec().recurrence;
  for (const Task* task : decoding_)
    plan_.recurrences = std::min(plan_.recurrences, task->decoder->StepsToReadout());
  int64_t planes = 0;  // read in the step
  for (Task* task : decoding_) {
    task->first_readout = plan_.readouts.size();
    task->committed = task->decoder->decided();
    planes -= task->decoder->statistics().planes;
    task->decoder->Plan(plan_.recurrences, plan_);
    planes += task->decoder->statistics().planes;
  }
  const double planned = host.Seconds();
  const StepResult* step = nullptr;
  try {
    step = &backend_.Wait(backend_.Submit(plan_));
  } catch (const std::exception& error) {
    for (Task* task : decoding_) End(*task, FinishReason::kError, error.what());
    return;
  }
  if (hooks_.after_step) hooks_.after_step(plan_, *step);
  Observe(*step, planes);
  ++counters_.steps;
  since_chunk_ += plan_.recurrences;
  counters_.rows += static_cast<int64_t>(plan_.rows.size());
  for (size_t i = 0; i < decoding_.size(); ++i) {
    Task& task = *decoding_[i];
    const size_t end =
        i + 1 < decoding_.size() ? decoding_[i + 1]->first_readout : plan_.readouts.size();
    task.result.times.prelude += step->prelude_seconds;
    task.result.times.recur += step->recur_seconds;
    task.result.times.readout += step->readout_seconds;
    const Timer absorbed;
    task.decoder->Absorb(
        std::span(step->decisions).subspan(task.first_readout, end - task.first_readout));
    task.result.times.host += planned + absorbed.Seconds();
    Deliver(task);
  }
}

// What the step took, as a step of as many rows at their mean context.
void Scheduler::Observe(const StepResult& step, int64_t planes) {
  if (plan_.rows.empty()) return;
  int64_t context = 0;
  for (const RowPlan& row : plan_.rows) context += row.position - row.chain_length;
  const auto rows = static_cast<int64_t>(plan_.rows.size());
  cost_.Observe(static_cast<int>(rows), static_cast<int>(planes / plan_.recurrences),
                context / rows, step.recur_seconds / plan_.recurrences);
}

// Hands over what is new, and ends the task when nothing more comes.
void Scheduler::Deliver(Task& task) {
  LoopSpec& decoder = *task.decoder;
  if (task.prompt_logprobs >= 0 && task.reported == 0) {
    task.stream->PushPrompt(std::move(task.scores));
    task.prompt_logprobs = -1;
  }
  if (task.score_only) return End(task, FinishReason::kLength);
  const std::vector<TraceEvent>& trace = decoder.trace();
  if (task.traced < trace.size()) {
    task.stream->PushSteps(task.choice,
                           {trace.begin() + static_cast<int64_t>(task.traced), trace.end()});
    task.traced = trace.size();
  }
  const std::vector<CommittedToken>& output = decoder.output();
  while (task.reported < output.size()) {
    if (task.reported == 0) {
      task.result.times.first_token = task.admitted.Seconds();
      task.decoded.Reset();
    }
    const CommittedToken& token = output[task.reported++];
    ++counters_.decoded_tokens;
    const bool last = decoder.finished() && task.reported == output.size();
    // What a step has decided beyond a stop string is not part of the text.
    if (!task.stream->PushToken(task.choice, token, last)) return End(task, FinishReason::kStop);
  }
  if (decoder.finished()) End(task, decoder.finish_reason(), decoder.error());
}

// ---- The end ----

// Tells the stream and gives everything back. Sweep takes the task off the lists.
void Scheduler::End(Task& task, FinishReason reason, const std::string& error) {
  if (task.stage == Task::Stage::kEnded) return;
  ChoiceResult& result = task.result;
  result.finish_reason = reason;
  result.error = error;
  result.decoded_tokens = static_cast<int64_t>(task.reported);
  if (task.stage == Task::Stage::kQueued) {
    const std::lock_guard lock(mutex_);
    --waiting_;
  }
  if (task.decoder) {
    // The next turn of a conversation begins with this answer.
    if (backend_.prefill_equals_decode() && reason != FinishReason::kError) {
      std::vector<int32_t> text = task.request.prompt;
      for (const CommittedToken& token : task.decoder->output()) text.push_back(token.token);
      text.resize(std::min(text.size(), static_cast<size_t>(task.committed)));
      if (task.stage != Task::Stage::kAside) room_.KeepPrefix(text, task.decoder->pages());
    }
    result.times.decode = task.reported > 0 ? task.decoded.Seconds() : 0.0;
    result.statistics = task.decoder->statistics();
    result.trace = task.decoder->trace();
    counters_.fallback += result.statistics.fallback;
    auto& accepted = counters_.accepted;
    accepted.resize(std::max(accepted.size(), result.statistics.accepted.size()));
    for (size_t i = 0; i < result.statistics.accepted.size(); ++i)
      accepted[i] += result.statistics.accepted[i];
    task.decoder.reset();
    task.saved = {};
  }
  ++(reason == FinishReason::kError       ? counters_.failed
     : reason == FinishReason::kCancelled ? counters_.cancelled
                                          : counters_.finished);
  task.stage = Task::Stage::kEnded;
  task.stream->End(task.choice, std::move(result));
}

void Scheduler::Sweep() {
  const auto ended = [](const auto& task) { return task->stage == Task::Stage::kEnded; };
  std::erase_if(queue_, ended);
  std::erase_if(active_, ended);
  std::erase_if(aside_, ended);
}

void Scheduler::Publish() {
  SchedulerState& state = counters_;
  state.prefilling = state.decoding = 0;
  for (const auto& task : active_)
    ++(task->stage == Task::Stage::kPrefill ? state.prefilling : state.decoding);
  state.set_aside = static_cast<int>(aside_.size());
  state.pages = backend_.pages();
  state.pages_free = ledger_.pages().available();
  state.pages_cached = static_cast<int>(room_.cached_pages());
  state.cells = backend_.options().cells;
  state.cells_free = ledger_.cells().available();
  const std::lock_guard lock(mutex_);
  published_ = state;
}

}  // namespace loopspec

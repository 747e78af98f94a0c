#include "engine/scheduler.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "engine/prompt_scores.h"

namespace loopspec {

// One choice of a submission.
struct Scheduler::Task {
  enum class Stage { kQueued, kPrefill, kDecode, kAside, kEnded };

  uint64_t submission;  // in order of arrival
  int choice;
  DecodeRequest request;
  int prompt_logprobs;
  bool score_only;
  std::shared_ptr<TokenStream> stream;

  Stage stage = Stage::kQueued;
  std::unique_ptr<LoopSpec> decoder;  // from admission on
  int64_t prefilled = 0;              // positions of the prompt that lie in pages
  int64_t committed = 0;              // positions that do, the prompt's included
  int64_t last_chunk = 0;             // turn in which a chunk was prefilled
  std::vector<PromptLogprob> scores;
  size_t reported = 0;           // tokens that the stream has
  std::vector<std::byte> saved;  // keys and values, when set aside
  size_t first_readout = 0;      // in the step at hand

  Timer waited;    // since submission
  Timer admitted;  // since admission
  Timer decoded;   // since the first token
  ChoiceResult result;

  // The prompt without its last token, which is the first branch.
  std::span<const int32_t> to_prefill() const {
    return std::span(request.prompt).first(request.prompt.size() - 1);
  }
  bool OlderThan(const Task& other) const {
    return submission != other.submission ? submission < other.submission : choice < other.choice;
  }
};

namespace {

int Default(int value, int otherwise) {
  return value > 0 ? value : otherwise;
}

}  // namespace

Scheduler::Scheduler(Backend& backend, const SchedulerOptions& options)
    : backend_(backend),
      options_(options),
      max_running_(std::clamp(Default(options.max_running, backend.options().cells / 4), 1,
                              std::max(1, backend.options().cells / 2))),
      max_rows_(std::min(Default(options.max_rows,
                                 options.cost ? backend.options().cells : backend.PreferredRows()),
                         backend.options().cells)),
      chunk_(Default(options.prefill_chunk, backend.PrefillChunk())),
      cost_(options.cost.value_or(StepCost{})),
      ledger_(backend.pages(), backend.options().cells),
      room_(backend, ledger_, options.cache_bytes),
      chooser_(backend.spec().recurrence, backend.options().cells) {
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
  DecodeRequest request = submission.request;
  if (submission.choices < 1) Fail("n is {}, expected 1 or more", submission.choices);
  if (submission.prompt_logprobs < -1)
    Fail("prompt logprobs is {}, expected 0 or more, or -1 for none", submission.prompt_logprobs);
  if (request.max_tokens == 0) request.max_tokens = 1;  // scoring alone
  CheckRequest(request, backend_.spec(), backend_.options());
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
    task->request.max_tokens = std::max(1, submission.request.max_tokens);
    task->request.row_budget = max_rows_;
    task->prompt_logprobs = i == 0 ? submission.prompt_logprobs : -1;
    task->score_only = submission.request.max_tokens == 0;
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
    MakeRoom();
    busy = !active_.empty();
    Step();
    // A chunk that is still under way is left to itself while there is something to decode.
    if (prefilling_ != nullptr && decoding_.empty()) FinishPrefill();
  } catch (const std::exception& error) {  // no memory, or a reader's own function threw
    for (const auto& task : active_) {
      if (task->stage != Task::Stage::kEnded) End(*task, FinishReason::kError, error.what());
    }
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

// ---- Admission ----

void Scheduler::Admit() {
  // Who was set aside comes first, and in order: no later one may take the room that it waits for.
  while (!aside_.empty()) {
    Task& task = *aside_.front();
    if (!TryResume(task)) return;
    if (task.stage != Task::Stage::kEnded) InsertByAge(std::move(aside_.front()), active_);
    aside_.erase(aside_.begin());
  }
  for (size_t i = 0; i < queue_.size() && static_cast<int>(active_.size()) < max_running_;) {
    Task& task = *queue_[i];
    // A choice whose prompt is being prefilled for another one shares it when that is done.
    const Task* sibling = Sibling(task);
    if (sibling != nullptr && sibling->stage == Task::Stage::kPrefill) {
      ++i;
      continue;
    }
    if (!TryAdmit(task)) return;
    if (task.stage != Task::Stage::kEnded) InsertByAge(std::move(queue_[i]), active_);
    queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void Scheduler::InsertByAge(std::unique_ptr<Task> task, Tasks& tasks) {
  const auto place =
      std::upper_bound(tasks.begin(), tasks.end(), task,
                       [](const auto& a, const auto& b) { return a->OlderThan(*b); });
  tasks.insert(place, std::move(task));
}

const Scheduler::Task* Scheduler::Sibling(const Task& task) const {
  for (const auto& other : active_) {
    if (other->submission == task.submission && other->stage != Task::Stage::kEnded)
      return other.get();
  }
  return nullptr;
}

// False when there is no room now. A task that cannot be admitted at all has ended.
bool Scheduler::TryAdmit(Task& task) {
  const int others = static_cast<int>(active_.size());
  if (!HaveCell()) return false;
  try {
    SequencePages pages(ledger_);
    const std::span<const int32_t> prompt = task.to_prefill();
    const auto length = static_cast<int64_t>(prompt.size());
    const Task* sibling = Sibling(task);
    int64_t known = 0;
    if (sibling != nullptr) {
      known = room_.ShareWhole(sibling->decoder->pages(), length, pages);
    } else if (task.prompt_logprobs < 0) {  // scores come from computing every position
      known = room_.TakePrefix(prompt, pages);
    }
    if (!room_.Grow(pages, length + 1, others)) return false;
    if (sibling != nullptr) {
      room_.CopyRest(sibling->decoder->pages(), length, pages);
      known = length;
    }
    task.decoder = std::make_unique<LoopSpec>(task.request, backend_.spec(), backend_.options(),
                                              ledger_, std::move(pages), cost_);
    task.prefilled = task.committed = task.result.cached_tokens = known;
    task.stage = known < length ? Task::Stage::kPrefill : Task::Stage::kDecode;
  } catch (const std::exception& error) {
    End(task, FinishReason::kError, error.what());
    return true;
  }
  task.result.queue_seconds = task.waited.Seconds();
  task.admitted.Reset();
  counters_.prompt_tokens += task.result.prompt_tokens;
  counters_.cached_tokens += task.result.cached_tokens;
  const std::lock_guard lock(mutex_);
  --waiting_;
  return true;
}

bool Scheduler::TryResume(Task& task) {
  const int others = static_cast<int>(active_.size());
  if (!HaveCell()) return false;
  // What a step will need, and something for the others, lest it be set aside again at once.
  const int64_t prompt = static_cast<int64_t>(task.request.prompt.size());
  SequencePages& pages = task.decoder->pages();
  if (!room_.Grow(pages, std::max(prompt, task.decoder->decided() + 1), others)) return false;
  try {
    room_.Load(task.saved, pages);
    task.saved = {};
    LOOPSPEC_CHECK(task.decoder->Resume());
    const bool prefilled = task.prefilled == static_cast<int64_t>(task.to_prefill().size());
    task.stage = prefilled ? Task::Stage::kDecode : Task::Stage::kPrefill;
  } catch (const std::exception& error) {
    End(task, FinishReason::kError, error.what());
  }
  return true;
}

// An equal share of the cells for everybody, less one: so many are left for whoever comes next.
void Scheduler::LimitBranches(size_t requests) {
  const int share = backend_.options().cells / std::max(1, static_cast<int>(requests));
  for (const auto& task : active_) {
    if (task->stage != Task::Stage::kEnded) task->decoder->LimitBranches(std::max(1, share - 1));
  }
}

void Scheduler::ShareCells() {
  if (sharing_ == active_.size()) return;
  sharing_ = active_.size();
  LimitBranches(sharing_);
}

// A cell for one request more: the others draw closer together where there is none.
bool Scheduler::HaveCell() {
  if (ledger_.cells().available() > 0) return true;
  sharing_ = active_.size() + 1;
  LimitBranches(sharing_);
  return ledger_.cells().available() > 0;
}

// ---- Prompts ----

// The next chunk for whoever has waited longest.
void Scheduler::StartPrefill() {
  if (prefilling_ != nullptr) return;
  Task* next = nullptr;
  for (const auto& task : active_) {
    if (task->stage != Task::Stage::kPrefill) continue;
    if (next == nullptr || task->last_chunk < next->last_chunk) next = task.get();
  }
  if (next == nullptr) return;
  next->last_chunk = turn_;
  const std::span<const int32_t> prompt = next->to_prefill();
  const auto start = static_cast<size_t>(next->prefilled);
  const size_t length = std::min(static_cast<size_t>(chunk_), prompt.size() - start);
  const PrefillPlan plan{{next->decoder->pages().pages().data()},
                         static_cast<int32_t>(start),
                         prompt.subspan(start, length)};
  prefilling_ = next;
  chunk_end_ = static_cast<int64_t>(start + length);
  try {
    if (next->prompt_logprobs >= 0) {
      ScorePrompt(backend_, plan, next->request.prompt, next->prompt_logprobs, next->scores);
    } else {
      backend_.Prefill(plan);
    }
  } catch (const std::exception& error) {
    prefilling_ = nullptr;
    return End(*next, FinishReason::kError, error.what());
  }
  FinishPrefill();
}

void Scheduler::FinishPrefill() {
  Task& task = *std::exchange(prefilling_, nullptr);
  if (task.stage != Task::Stage::kPrefill) return;
  task.prefilled = task.committed = chunk_end_;
  const std::span<const int32_t> prompt = task.to_prefill();
  if (chunk_end_ < static_cast<int64_t>(prompt.size())) return;
  room_.KeepPrefix(prompt, task.decoder->pages());
  task.result.times.prefill = task.admitted.Seconds();
  task.stage = Task::Stage::kDecode;
}

// ---- Steps ----

// Pages for whatever the next step may commit. The oldest request chooses first.
void Scheduler::MakeRoom() {
  for (const auto& task : active_) {
    if (task->stage == Task::Stage::kDecode && !MakeRoom(*task)) SetAside(*task);
  }
  for (auto& task : active_) {
    if (task->stage == Task::Stage::kAside) InsertByAge(std::move(task), aside_);
  }
  std::erase(active_, nullptr);
}

bool Scheduler::MakeRoom(Task& task) {
  while (!room_.Grow(task.decoder->pages(), task.decoder->positions())) {
    const auto youngest = std::find_if(active_.rbegin(), active_.rend(), [](const auto& other) {
      return other->stage == Task::Stage::kPrefill || other->stage == Task::Stage::kDecode;
    });
    if (youngest->get() == &task) return false;
    SetAside(**youngest);
  }
  return true;
}

void Scheduler::SetAside(Task& task) {
  if (prefilling_ == &task) FinishPrefill();
  try {
    if (task.decoder->commits_due()) {
      plan_.Clear();
      task.decoder->PlanCommits(plan_);
      backend_.Wait(backend_.Submit(plan_));
    }
    if (task.stage == Task::Stage::kDecode) task.committed = task.decoder->decided();
    task.saved = room_.Save(task.decoder->pages(), task.committed);
  } catch (const std::exception& error) {
    return End(task, FinishReason::kError, error.what());
  }
  task.decoder->Suspend();
  task.stage = Task::Stage::kAside;
  ++task.result.set_aside;
  ++counters_.times_set_aside;
}

// Which branches of all requests advance. One that has the step to itself has chosen already.
void Scheduler::Choose() {
  if (decoding_.size() < 2) return;
  rows_.clear();
  for (size_t i = 0; i < decoding_.size(); ++i) {
    decoding_[i]->decoder->ListRows(static_cast<int32_t>(i), rows_);
  }
  const int limit = std::max(max_rows_, static_cast<int>(decoding_.size()));
  chooser_.Choose(rows_, limit, cost_, advance_);
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
  plan_.Clear();
  plan_.recurrences = backend_.spec().recurrence;
  for (const Task* task : decoding_)
    plan_.recurrences = std::min(plan_.recurrences, task->decoder->StepsToReadout());
  for (Task* task : decoding_) {
    task->first_readout = plan_.readouts.size();
    task->committed = task->decoder->decided();
    task->decoder->Plan(plan_.recurrences, plan_);
  }
  const double planned = host.Seconds();
  const StepResult* step = nullptr;
  try {
    step = &backend_.Wait(backend_.Submit(plan_));
  } catch (const std::exception& error) {
    for (Task* task : decoding_) End(*task, FinishReason::kError, error.what());
    return;
  }
  ++counters_.steps;
  counters_.rows += static_cast<int64_t>(plan_.rows.size());
  for (size_t i = 0; i < decoding_.size(); ++i) {
    Task& task = *decoding_[i];
    const size_t end =
        i + 1 < decoding_.size() ? decoding_[i + 1]->first_readout : plan_.readouts.size();
    task.result.times.prelude += step->prelude_seconds;
    task.result.times.recur += step->recur_seconds;
    task.result.times.readout += step->readout_seconds;
    task.result.times.host += planned;
    task.decoder->Absorb(
        std::span(step->decisions).subspan(task.first_readout, end - task.first_readout));
    Deliver(task);
  }
}

// Hands over what is new, and ends the task when nothing more comes.
void Scheduler::Deliver(Task& task) {
  LoopSpec& decoder = *task.decoder;
  if (task.prompt_logprobs >= 0 && task.reported == 0) {
    task.stream->PushPrompt(std::move(task.scores));
    task.prompt_logprobs = -1;
  }
  if (task.score_only) return End(task, FinishReason::kLength);
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
  if (decoder.finished()) End(task, decoder.finish_reason());
}

// ---- The end ----

// Tells the stream and gives everything back. Sweep takes the task off the lists.
void Scheduler::End(Task& task, FinishReason reason, const std::string& error) {
  ChoiceResult& result = task.result;
  result.finish_reason = reason;
  result.error = error;
  result.tokens = static_cast<int64_t>(task.reported);
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

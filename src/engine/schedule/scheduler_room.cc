// Who is in: admission, and setting aside when pages run out.
#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/scheduler_task.h"

namespace loopspec {

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
    pages.Reserve(std::ssize(task.request.prompt) + task.request.max_tokens);
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
                                              ledger_, std::move(pages), cost_.cost());
    task.prefilled = task.committed = task.result.cached_tokens = known;
    task.last_chunk = turn_ - 1;
    task.stage = known < length ? Task::Stage::kPrefill : Task::Stage::kDecode;
  } catch (const std::exception& error) {
    End(task, FinishReason::kError, error.what());
    return true;
  }
  sharing_ = 0;  // anew
  task.result.queue_seconds = task.waited.Seconds();
  task.admitted.Reset();
  counters_.prompt_tokens += task.result.prompt_tokens;
  counters_.cached_tokens += task.result.cached_tokens;
  if (task.report_prefill && task.stage == Task::Stage::kPrefill)
    task.stream->PushPrefilled(task.prefilled, std::ssize(task.to_prefill()));
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
    sharing_ = 0;  // anew
  } catch (const std::exception& error) {
    End(task, FinishReason::kError, error.what());
  }
  return true;
}

// An equal share of the cells for everybody, less one: so many are left for whoever comes next.
// After one that is always alone nobody does.
void Scheduler::LimitBranches(size_t requests) {
  const int share = backend_.options().cells / std::max(1, static_cast<int>(requests));
  const int most = max_running_ == 1 ? share : share - 1;
  for (const auto& task : active_) {
    if (task->stage != Task::Stage::kEnded) task->decoder->LimitBranches(std::max(1, most));
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

// ---- Pages for those who are in ----

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
  if (task.stage == Task::Stage::kEnded) return;
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

}  // namespace loopspec

#include "engine/schedule/scheduler.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace loopspec {

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
      max_rows_(
          std::min(Default(options.max_rows, backend.options().cells), backend.options().cells)),
      ledger_(backend.pages(), backend.options().cells),
      pages_(backend, ledger_, options.cache_bytes),
      step_(backend, max_running_, max_rows_, options.cost),
      admission_(backend, ledger_, pages_, sequences_, max_running_, step_.cost()),
      prefill_(backend, pages_, Default(options.prefill_chunk, backend.PrefillChunk())) {
  counters_.steps_by_rows.resize(static_cast<size_t>(backend.options().cells) + 1);
  Publish();
}

Scheduler::~Scheduler() {
  stopping_ = true;
  wakeup_->Signal();
  if (thread_.joinable()) thread_.join();
  TakeIn();
  if (prefill_.sequence() != nullptr) FinishChunk();
  for (auto& sequence : sequences_) End(*sequence, FinishReason::kCancelled);
}

void Scheduler::Start() {
  LOOPSPEC_CHECK(!thread_.joinable());
  thread_ = std::thread([this] {
    while (!stopping_) {
      if (!Step()) wakeup_->Wait();
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
  Sequences sequences;
  for (int i = 0; i < submission.choices; ++i) {
    auto sequence = std::make_unique<Sequence>();
    sequence->choice = i;
    sequence->share = submission.share;
    sequence->weight = submission.weight;
    sequence->priority = submission.priority;
    sequence->request = submission.request;
    sequence->request.choice = submission.request.choice + static_cast<uint32_t>(i);
    sequence->request.row_budget =
        std::min(Default(submission.request.row_budget, max_rows_), max_rows_);
    sequence->prompt_logprobs = i == 0 ? submission.prompt_logprobs : -1;
    if (i == 0) sequence->on_logits = submission.on_logits;
    sequence->score_only = submission.request.max_tokens == 0;
    sequence->report_prefill = i == 0 && submission.report_prefill;
    sequence->stream = stream;
    sequence->result.prompt_tokens = std::ssize(sequence->request.prompt);
    sequences.push_back(std::move(sequence));
  }
  {
    const std::lock_guard lock(mutex_);
    if (waiting_ + submission.choices > options_.max_queued) {
      throw QueueFull(fmt::format("{} requests wait already, no more than {} may: try again later",
                                  waiting_, options_.max_queued));
    }
    waiting_ += submission.choices;
    ++submissions_;
    for (auto& sequence : sequences) {
      sequence->submission = submissions_;
      inbox_.push_back(std::move(sequence));
    }
  }
  wakeup_->Signal();
  return stream;
}

EngineMetrics Scheduler::state() const {
  const std::lock_guard lock(mutex_);
  EngineMetrics state = published_;
  state.waiting = waiting_;
  return state;
}

// ---- A scheduling step ----

bool Scheduler::Step() {
  ++number_;
  admission_closed_ = chunk_settled_ = false;
  bool busy = true;
  try {
    TakeIn();
    DropCancelled();
    admission_.ShareCells();
    for (NextAction next = Next(); next.action != Action::kStep; next = Next()) Do(next);
    busy = !sequences_.empty();
    Decode();
    if (prefill_.sequence() != nullptr && (decoding_.empty() || prefill_.Done())) FinishChunk();
  } catch (const std::exception& error) {  // no memory
    if (prefill_.sequence() != nullptr) FinishChunk();
    for (const auto& sequence : sequences_) {
      if (sequence->running()) End(*sequence, FinishReason::kError, error.what());
    }
  }
  Sweep();
  Publish();
  return busy;
}

NextAction Scheduler::Next() {
  views_.clear();
  share_views_.clear();
  for (auto& [id, share] : shares_) {
    share.index = static_cast<int>(share_views_.size());
    share_views_.push_back(share.view);
  }
  int missing = 0;
  for (const auto& sequence : sequences_) {
    SequenceView view{sequence->stage, sequence->submission};
    view.share = ShareOf(*sequence).index;
    view.priority = sequence->priority;
    view.prompt_left = std::ssize(sequence->to_prefill()) - sequence->prefilled;
    view.work_left = sequence->work_left();
    view.begins = sequence->stage == Stage::kDecode && sequence->reported < options_.first_tokens;
    if (view.stage == Stage::kWaiting) view.waited = sequence->waited.Seconds();
    if (view.stage == Stage::kDecode)
      view.pages_missing =
          KvPages::Missing(sequence->decoder->pages(), sequence->decoder->positions());
    missing += view.pages_missing;
    views_.push_back(view);
  }
  ScheduleView view;
  view.sequences = views_;
  view.shares = share_views_;
  view.max_running = max_running_;
  view.pages_free = pages_.free();
  view.recurrence = backend_.spec().recurrence;
  view.admission_closed = admission_closed_;
  view.chunk = chunk_settled_                   ? ScheduleView::Chunk::kSettled
               : prefill_.sequence() != nullptr ? ScheduleView::Chunk::kInFlight
                                                : ScheduleView::Chunk::kNone;
  view.recurrences = recurrences_;
  view.tokens = tokens_;
  view.chunk_positions = prefill_.chunk();
  view.step_seconds = step_seconds_;
  view.chunk_seconds = chunk_seconds_;
  view.chunk_passed = chunk_passed_;
  view.pages_short = pages_short_;
  view.short_wait = options_.short_wait;
  NextAction next = Schedule(view);
  if (next.action == Action::kPreempt) {  // cached prefixes go before any sequence does
    view.pages_free = pages_.EvictFor(missing);
    next = Schedule(view);
  }
  return next;
}

void Scheduler::Do(const NextAction& next) {
  const auto sequence = [&]() -> Sequence& {
    return *sequences_[static_cast<size_t>(next.sequence)];
  };
  // Once per step: what is preempted in it, or prefilled, changes nothing before the next.
  if (next.action != Action::kAdmit && next.action != Action::kResume &&
      next.action != Action::kReplace)
    admission_closed_ = true;
  switch (next.action) {
    case Action::kAdmit:
      return Admit(sequence());
    case Action::kResume:
      return Resume(sequence());
    case Action::kReplace:
      return Replace(sequence(), *sequences_[static_cast<size_t>(next.by)]);
    case Action::kBeginChunk:
      chunk_passed_ = next.passes;
      return BeginChunk(sequence());
    case Action::kCheckChunk:
      return CheckChunk();
    case Action::kPreempt:
      return Preempt(sequence());
    case Action::kStep:
      return;
  }
}

void Scheduler::TakeIn() {
  const std::lock_guard lock(mutex_);
  for (auto& sequence : inbox_) {
    // A share that comes, or comes back, has no claim on what others got meanwhile.
    double least = shares_.empty() ? 0 : INFINITY;
    for (const auto& [id, share] : shares_) least = std::min(least, share.view.prefilled);
    const auto [place, is_new] = shares_.try_emplace(sequence->share);
    if (is_new) place->second.view.prefilled = least;
    place->second.view.weight = sequence->weight;
    ++place->second.sequences;
    sequences_.push_back(std::move(sequence));
  }
  inbox_.clear();
}

Scheduler::ShareState& Scheduler::ShareOf(const Sequence& sequence) {
  return shares_.at(sequence.share);
}

void Scheduler::DropCancelled() {
  for (auto& sequence : sequences_) {
    if (!sequence->stream->cancelled()) continue;
    if (sequence.get() == prefill_.sequence()) FinishChunk();
    End(*sequence, FinishReason::kCancelled);
  }
  Sweep();
}

template <typename F>
bool Scheduler::Guard(Sequence& sequence, F part) {
  try {
    part();
    return true;
  } catch (const std::exception& error) {
    End(sequence, FinishReason::kError, error.what());
    return false;
  }
}

void Scheduler::Admit(Sequence& sequence) {
  bool fits = false;
  if (!Guard(sequence, [&] { fits = admission_.Admit(sequence); })) return;
  admission_closed_ = pages_short_ = !fits;
  if (!fits) return;
  sequence.last_chunk = number_ - 1;
  counters_.prompt_tokens += sequence.result.prompt_tokens;
  counters_.cached_tokens += sequence.result.cached_tokens;
  if (sequence.report_prefill && sequence.stage == Stage::kPrefill)
    sequence.stream->PushPrefilled(sequence.prefilled, std::ssize(sequence.to_prefill()));
  const std::lock_guard lock(mutex_);
  --waiting_;
}

void Scheduler::Resume(Sequence& sequence) {
  Guard(sequence, [&] { admission_closed_ = pages_short_ = !admission_.Resume(sequence); });
}

void Scheduler::Replace(Sequence& sequence, Sequence& by) {
  Preempt(sequence);
  by.stage == Stage::kPreempted ? Resume(by) : Admit(by);
}

void Scheduler::BeginChunk(Sequence& sequence) {
  recurrences_ = tokens_ = 0;
  step_seconds_ = chunk_seconds_ = 0;
  sequence.last_chunk = number_;
  const int64_t cached = sequence.result.cached_tokens;
  Guard(sequence, [&] { prefill_.Begin(sequence); });
  counters_.cached_tokens += sequence.result.cached_tokens - cached;
  chunk_settled_ = prefill_.sequence() == nullptr;
}

// A chunk may run beside one step, and is then waited for: a device that prefers steps would leave
// prompts waiting for as long as any sequence decodes.
void Scheduler::CheckChunk() {
  chunk_settled_ = true;
  if (prefill_.Done() || prefill_.sequence()->last_chunk < number_) FinishChunk();
}

void Scheduler::FinishChunk() {
  Sequence& sequence = *prefill_.sequence();
  const int64_t before = sequence.prefilled;
  Guard(sequence, [&] { prefill_.Finish(); });
  chunk_seconds_ = prefill_.seconds();
  step_seconds_ = 0;
  ShareView& share = ShareOf(sequence).view;
  share.prefilled += static_cast<double>(sequence.prefilled - before) / share.weight;
}

void Scheduler::Preempt(Sequence& sequence) {
  if (prefill_.sequence() == &sequence) FinishChunk();
  if (sequence.stage == Stage::kEnded) return;
  if (Guard(sequence, [&] { admission_.Preempt(sequence); })) ++counters_.preemptions;
}

void Scheduler::Decode() {
  decoding_.clear();
  for (const auto& sequence : sequences_) {
    if (sequence->stage != Stage::kDecode) continue;
    if (sequence->score_only) {  // its prompt alone was asked for
      Deliver(*sequence);
      continue;
    }
    LoopSpec& decoder = *sequence->decoder;
    LOOPSPEC_CHECK(pages_.Grow(decoder.pages(), decoder.positions()));
    decoding_.push_back(sequence.get());
  }
  if (decoding_.empty()) return;
  const Timer timer;
  try {
    step_.Run(decoding_, hooks_);
  } catch (const std::exception& error) {
    for (Sequence* sequence : decoding_) End(*sequence, FinishReason::kError, error.what());
    return;
  }
  ++counters_.steps;
  counters_.rows += std::ssize(step_.plan().rows);
  ++counters_.steps_by_rows[step_.plan().rows.size()];
  recurrences_ += step_.plan().recurrences;
  step_seconds_ += timer.Seconds();
  for (size_t i = 0; i < decoding_.size(); ++i) {
    step_.Absorb(i);
    Deliver(*decoding_[i]);
  }
}

// Hands over what is new, and ends the sequence when nothing more comes.
void Scheduler::Deliver(Sequence& sequence) {
  LoopSpec& decoder = *sequence.decoder;
  if (sequence.prompt_logprobs >= 0 && sequence.reported == 0) {
    sequence.stream->PushPrompt(std::move(sequence.scores));
    sequence.prompt_logprobs = -1;
  }
  if (sequence.score_only) return End(sequence, FinishReason::kLength);
  const std::vector<TraceEvent>& trace = decoder.trace();
  if (sequence.traced < trace.size()) {
    sequence.stream->PushSteps(
        sequence.choice, {trace.begin() + static_cast<int64_t>(sequence.traced), trace.end()});
    sequence.traced = trace.size();
  }
  const std::vector<CommittedToken>& output = decoder.output();
  while (sequence.reported < output.size()) {
    if (sequence.reported == 0) sequence.result.times.first_token = sequence.admitted.Seconds();
    const CommittedToken& token = output[sequence.reported++];
    ++counters_.decoded_tokens;
    ++tokens_;
    const bool last = decoder.finished() && sequence.reported == output.size();
    // What a step has decided beyond a stop string is not part of the text.
    if (!sequence.stream->PushToken(sequence.choice, token, last))
      return End(sequence, FinishReason::kStop);
  }
  if (decoder.finished()) End(sequence, decoder.finish_reason(), decoder.error());
}

// ---- The end ----

// Tells the stream and gives everything back. Sweep takes the sequence off the list.
void Scheduler::End(Sequence& sequence, FinishReason reason, const std::string& error) {
  if (sequence.stage == Stage::kEnded) return;
  ChoiceResult& result = sequence.result;
  result.finish_reason = reason;
  result.error = error;
  result.decoded_tokens = static_cast<int64_t>(sequence.reported);
  if (sequence.stage == Stage::kWaiting) {
    const std::lock_guard lock(mutex_);
    --waiting_;
  }
  if (sequence.decoder) {
    LoopSpec& decoder = *sequence.decoder;
    // The next request of a conversation begins with this answer.
    if (backend_.prefill_equals_decode() && reason != FinishReason::kError) {
      std::vector<int32_t> text = sequence.request.prompt;
      for (const CommittedToken& token : decoder.output()) text.push_back(token.token);
      text.resize(std::min(text.size(), static_cast<size_t>(sequence.committed)));
      if (sequence.stage != Stage::kPreempted) {
        const auto drafted = std::min(text.size(), static_cast<size_t>(decoder.drafted()));
        pages_.CachePrefix(std::span(text).first(drafted), decoder.pages(), sequence.reads);
        pages_.CachePrefix(text, decoder.pages(), sequence.undrafted_planes());
      }
    }
    result.times.decode = sequence.reported > 0 ? sequence.decoded.Seconds() : 0.0;
    result.statistics = decoder.statistics();
    result.trace = decoder.trace();
    counters_.fallback += result.statistics.fallback;
    counters_.early += result.statistics.early;
    counters_.drafted += result.statistics.drafted;
    auto& accepted = counters_.accepted;
    accepted.resize(std::max(accepted.size(), result.statistics.accepted.size()));
    for (size_t i = 0; i < result.statistics.accepted.size(); ++i)
      accepted[i] += result.statistics.accepted[i];
    sequence.decoder.reset();
    sequence.swapped = {};
  }
  ++(reason == FinishReason::kError       ? counters_.failed
     : reason == FinishReason::kCancelled ? counters_.cancelled
                                          : counters_.finished);
  sequence.stage = Stage::kEnded;
  sequence.stream->End(sequence.choice, std::move(result));
}

void Scheduler::Sweep() {
  for (const auto& sequence : sequences_) {
    if (sequence->stage != Stage::kEnded) continue;
    if (--ShareOf(*sequence).sequences == 0) shares_.erase(sequence->share);
  }
  std::erase_if(sequences_, [](const auto& sequence) { return sequence->stage == Stage::kEnded; });
}

void Scheduler::Publish() {
  EngineMetrics& state = counters_;
  state.prefilling = state.decoding = state.preempted = 0;
  for (const auto& sequence : sequences_) {
    state.prefilling += sequence->stage == Stage::kPrefill ? 1 : 0;
    state.decoding += sequence->stage == Stage::kDecode ? 1 : 0;
    state.preempted += sequence->stage == Stage::kPreempted ? 1 : 0;
  }
  state.pages = backend_.pages();
  state.pages_free = pages_.free();
  state.pages_cached = static_cast<int>(pages_.cached());
  state.pages_evictable = pages_.evictable();
  state.cells = backend_.options().cells;
  state.cells_free = ledger_.cells().available();
  const std::lock_guard lock(mutex_);
  published_ = state;
}

}  // namespace loopspec

#include "engine/schedule/scheduler.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/field_error.h"

namespace loopspec {

namespace {

int Default(int value, int otherwise) {
  return value > 0 ? value : otherwise;
}

SchedulerOptions WithDefaults(SchedulerOptions options, const Backend& backend) {
  const int cells = backend.options().cells;
  options.max_running =
      std::clamp(Default(options.max_running, cells / 4), 1, std::max(1, cells / 2));
  options.max_rows = std::min(Default(options.max_rows, cells), cells);
  options.prefill_chunk = Default(options.prefill_chunk, backend.PrefillChunk());
  return options;
}

}  // namespace

Scheduler::Scheduler(Backend& backend, const SchedulerOptions& options)
    : backend_(backend),
      options_(WithDefaults(options, backend)),
      ledger_(backend.pages(), backend.options().cells, backend.window_pages()),
      pages_(backend, ledger_, options_.cache_bytes),
      step_(backend, options_.max_running, options_.max_rows, options_.cost),
      admission_(backend, ledger_, pages_, sequences_, tenants_.views, options_.max_running,
                 step_.cost()),
      prefill_(backend, pages_, options_.prefill_chunk) {
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
  if (options_.on_wrong_cost && step_.costs_disagree()) options_.on_wrong_cost();
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

void Scheduler::Check(const ResolvedRequest& request) const {
  if (request.choices < 1 || request.choices > options_.max_queued)
    throw FieldError("n", fmt::format("{}", request.choices),
                     fmt::format("1 to {}", options_.max_queued));
  CheckRequest(request, backend_.spec(), backend_.options());
  CheckLimits(request, backend_.limits());
  const int64_t positions = static_cast<int64_t>(request.prompt.size()) + request.max_tokens;
  const int pages = backend_.pages() - backend_.window_pages();
  if (PagesFor(positions) > pages) {
    Fail("a prompt of {} tokens and {} new ones make {} positions, the key/value memory holds {}",
         request.prompt.size(), request.max_tokens, positions, int64_t{pages} * kPageSize);
  }
}

std::shared_ptr<TokenStream> Scheduler::Submit(ResolvedRequest request) {
  Check(request);
  request.max_rows = std::min(Default(request.max_rows, options_.max_rows), options_.max_rows);
  const std::shared_ptr<const ResolvedRequest> resolved =
      Share(std::move(request), backend_.spec());
  auto stream = std::make_shared<TokenStream>(resolved, wakeup_, options_.tokenizer);
  Sequences sequences;
  for (int i = 0; i < resolved->choices; ++i) {
    auto sequence = std::make_unique<Sequence>();
    sequence->request = resolved;
    sequence->choice = i;
    sequence->stream = stream;
    sequence->observer = std::make_shared<DecodeObserver>(resolved->trace);
    sequence->statistics().prompt_tokens = std::ssize(resolved->prompt);
    sequences.push_back(std::move(sequence));
  }
  {
    const std::lock_guard lock(shared_.mutex);
    if (shared_.waiting + resolved->choices > options_.max_queued) {
      throw QueueFull(fmt::format("{} requests wait already, no more than {} may: try again later",
                                  shared_.waiting, options_.max_queued));
    }
    shared_.waiting += resolved->choices;
    ++shared_.submissions;
    for (auto& sequence : sequences) {
      sequence->submission = shared_.submissions;
      shared_.inbox.push_back(std::move(sequence));
    }
  }
  wakeup_->Signal();
  return stream;
}

EngineMetrics Scheduler::state() const {
  const std::lock_guard lock(shared_.mutex);
  EngineMetrics state = shared_.published;
  state.waiting = shared_.waiting;
  state.unread_bytes = wakeup_->unread_bytes;
  return state;
}

// ---- A scheduling step ----

bool Scheduler::Step() {
  bool busy = true;
  try {
    TakeIn();
    DropCancelled();
    admission_.DivideCells();
    Plan plan = MakePlan(true);
    while (!plan.admit.empty()) plan = MakePlan(AdmitThose(plan.admit));
    ChunkOf(plan);
    PreemptFor(plan);
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

Plan Scheduler::MakePlan(bool admission_open) {
  views_.clear();
  for (const auto& sequence : sequences_) {
    SequenceView view{sequence->stage, sequence->submission};
    view.tenant = sequence->tenant;
    view.priority = sequence->request->priority;
    view.prompt_left = std::ssize(sequence->to_prefill()) - sequence->prefilled;
    view.work_left = sequence->work_left();
    view.begins = sequence->stage == Stage::kDecode && sequence->reported < options_.first_tokens;
    if (view.stage == Stage::kWaiting) view.waited = sequence->waited.Seconds();
    if (view.stage == Stage::kDecode)
      view.pages_missing = sequence->decoder->pages().Missing(sequence->decoder->positions());
    views_.push_back(view);
  }
  ScheduleView view{.sequences = views_, .tenants = tenants_.views, .pacing = pacing_};
  view.max_running = options_.max_running;
  view.pages_free = pages_.free();
  view.recurrence = backend_.spec().recurrence;
  view.chunk_positions = options_.prefill_chunk;
  view.short_wait = options_.short_wait;
  view.admission_open = admission_open;
  view.chunk_in_flight = prefill_.sequence() != nullptr;
  return Schedule(view);
}

void Scheduler::TakeIn() {
  const std::lock_guard lock(shared_.mutex);
  for (auto& sequence : shared_.inbox) {
    tenants_.Enter(*sequence);
    sequences_.push_back(std::move(sequence));
  }
  shared_.inbox.clear();
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

bool Scheduler::AdmitThose(const std::vector<Admit>& admit) {
  for (const Admit& next : admit) {
    Sequence& sequence = *sequences_[static_cast<size_t>(next.sequence)];
    if (next.replaces >= 0) Preempt(*sequences_[static_cast<size_t>(next.replaces)]);
    if (sequence.stage != Stage::kEnded && !AdmitOne(sequence)) return false;
  }
  return true;
}

// A waiting sequence, or one that was preempted. False when it does not fit now.
bool Scheduler::AdmitOne(Sequence& sequence) {
  const bool waits = sequence.stage == Stage::kWaiting;
  bool fits = false;
  if (!Guard(sequence,
             [&] { fits = waits ? admission_.Admit(sequence) : admission_.Resume(sequence); }))
    return true;  // it has ended with an error, and the next may be tried
  pacing_.pages_short = !fits;
  if (!fits || !waits) return fits;
  counters_.prompt_tokens += sequence.statistics().prompt_tokens;
  counters_.cached_tokens += sequence.statistics().cached_tokens;
  if (sequence.tells_progress() && sequence.stage == Stage::kPrefill)
    sequence.stream->PushProgress(sequence.prefilled, std::ssize(sequence.to_prefill()));
  const std::lock_guard lock(shared_.mutex);
  --shared_.waiting;
  return true;
}

// A chunk may run beside one step, and is then waited for: a device that prefers steps would leave
// prompts waiting for as long as any sequence decodes.
void Scheduler::ChunkOf(const Plan& plan) {
  if (prefill_.sequence() != nullptr) return FinishChunk();
  if (plan.chunk < 0) return;
  Sequence& sequence = *sequences_[static_cast<size_t>(plan.chunk)];
  pacing_.BeginChunk(plan.overtakes);
  const int64_t cached = sequence.statistics().cached_tokens;
  Guard(sequence, [&] { prefill_.Begin(sequence); });
  counters_.cached_tokens += sequence.statistics().cached_tokens - cached;
  if (prefill_.Done()) FinishChunk();
}

void Scheduler::FinishChunk() {
  Sequence& sequence = *prefill_.sequence();
  const int64_t before = sequence.prefilled;
  Guard(sequence, [&] { prefill_.Finish(); });
  pacing_.chunk_seconds = prefill_.seconds();
  pacing_.step_seconds = 0;
  TenantView& tenant = tenants_.Of(sequence);
  tenant.prefilled += static_cast<double>(sequence.prefilled - before) / tenant.weight;
}

// Cached prefixes go before any sequence does.
void Scheduler::PreemptFor(const Plan& plan) {
  int pages = plan.pages;
  for (const int next : plan.preempt) {
    if (pages_.EvictFor(pages) >= pages) return;
    pages -= views_[static_cast<size_t>(next)].pages_missing;
    Preempt(*sequences_[static_cast<size_t>(next)]);
  }
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
    if (sequence->score_only()) {  // its prompt alone was asked for
      Deliver(*sequence);
      continue;
    }
    LoopSpec& decoder = *sequence->decoder;
    LOOPSPEC_CHECK(pages_.Grow(decoder.pages(), decoder.positions()));
    decoding_.push_back(sequence.get());
  }
  if (decoding_.empty()) return;
  ChooseTurns();
  const Timer timer;
  try {
    step_.Run(decoding_);
  } catch (const std::exception& error) {
    for (Sequence* sequence : decoding_) End(*sequence, FinishReason::kError, error.what());
    return;
  }
  ++counters_.steps;
  counters_.rows += std::ssize(step_.plan().rows);
  ++counters_.steps_by_rows[step_.plan().rows.size()];
  pacing_.loops += step_.plan().recurrences;
  pacing_.step_seconds += timer.Seconds();
  for (size_t i = 0; i < decoding_.size(); ++i) {
    Sequence& sequence = *decoding_[i];
    const int64_t context = sequence.committed;
    const size_t reported = sequence.reported;
    step_.Absorb(i);
    Deliver(sequence);
    if (sequence.reported == reported) continue;
    sequence.last_token = counters_.steps;
    TenantView& tenant = tenants_.Of(sequence);
    tenant.decoded += static_cast<double>(sequence.reported - reported) *
                      TokenCharge(step_.cost(), context) / tenant.weight;
  }
  tenants_.SettleTokens(sequences_);
}

void Scheduler::ChooseTurns() {
  turns_.sequences.clear();
  for (const Sequence* sequence : decoding_) {
    const BranchTree& tree = sequence->decoder->tree();
    const auto rows = std::count_if(tree.active().begin(), tree.active().end(),
                                    [&](int32_t branch) { return tree[branch].advancing; });
    turns_.sequences.push_back({sequence->tenant, sequence->request->priority, sequence->last_token,
                                static_cast<int>(rows), sequence->committed});
  }
  ScheduleTurns(tenants_.views, step_.cost(), turns_);
  auto turn = turns_.turns.begin();
  std::erase_if(decoding_, [&](const Sequence*) { return *turn++ == Turn::kWaits; });
}

// Hands over what is new, and ends the sequence when nothing more comes.
void Scheduler::Deliver(Sequence& sequence) {
  LoopSpec& decoder = *sequence.decoder;
  if (sequence.prompt_logprobs() && !sequence.scores_told) {
    sequence.stream->PushPrompt(std::move(sequence.scores));
    sequence.scores_told = true;
  }
  if (sequence.score_only()) return End(sequence, FinishReason::kLength);
  if (!decoder.trace().empty())
    sequence.stream->PushTrace(sequence.choice, sequence.observer->TakeTrace());
  const std::vector<Token>& output = decoder.output();
  while (sequence.reported < output.size()) {
    if (sequence.reported == 0)
      sequence.statistics().first_token_seconds = sequence.admitted.Seconds();
    const Token& token = output[sequence.reported++];
    ++counters_.decoded_tokens;
    ++pacing_.tokens;
    const bool last = decoder.finished() && sequence.reported == output.size();
    // What a step has decided beyond a stop string is not part of the text.
    if (!sequence.stream->PushToken(token, last)) return End(sequence, FinishReason::kStop);
  }
  if (decoder.finished()) End(sequence, decoder.finish_reason(), decoder.error());
}

// ---- The end ----

// Tells the stream and gives everything back. Sweep takes the sequence off the list.
void Scheduler::End(Sequence& sequence, FinishReason reason, const std::string& error) {
  if (sequence.stage == Stage::kEnded) return;
  Statistics& statistics = sequence.statistics();
  statistics.finish_reason = reason;
  statistics.error = error;
  statistics.decoded_tokens = static_cast<int64_t>(sequence.reported);
  if (sequence.stage == Stage::kWaiting) {
    const std::lock_guard lock(shared_.mutex);
    --shared_.waiting;
  }
  if (sequence.decoder) {
    LoopSpec& decoder = *sequence.decoder;
    // The next request of a conversation begins with this answer.
    if (backend_.prefill_equals_decode() && reason != FinishReason::kError) {
      std::vector<int32_t> text = sequence.request->prompt;
      for (const Token& token : decoder.output()) text.push_back(token.id);
      text.resize(std::min(text.size(), static_cast<size_t>(sequence.committed)));
      if (sequence.stage != Stage::kPreempted) {
        const auto drafted = std::min(text.size(), static_cast<size_t>(decoder.drafted()));
        pages_.CachePrefix(std::span(text).first(drafted), decoder.pages(), sequence.reads);
        pages_.CachePrefix(text, decoder.pages(), sequence.undrafted_planes(), true);
      }
    }
    statistics.decode_seconds = sequence.reported > 0 ? sequence.decoded.Seconds() : 0.0;
    sequence.observer->Summarise(sequence.request->depths, sequence.request->recurrence);
    counters_.fallback += statistics.fallback;
    counters_.early += statistics.early;
    counters_.drafted += statistics.drafted;
    auto& accepted = counters_.accepted;
    accepted.resize(std::max(accepted.size(), statistics.accepted.size()));
    for (size_t i = 0; i < statistics.accepted.size(); ++i) accepted[i] += statistics.accepted[i];
    sequence.decoder.reset();
    sequence.swapped = {};
  }
  ++(reason == FinishReason::kError       ? counters_.failed
     : reason == FinishReason::kCancelled ? counters_.cancelled
                                          : counters_.finished);
  sequence.stage = Stage::kEnded;
  sequence.stream->End(sequence.choice, std::move(statistics));
}

void Scheduler::Sweep() {
  for (const auto& sequence : sequences_) {
    if (sequence->stage == Stage::kEnded) tenants_.Leave(*sequence);
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
  state.page_bytes = backend_.page_bytes();
  state.pages_free = pages_.free();
  state.pages_cached = static_cast<int>(pages_.cached());
  state.pages_evictable = pages_.evictable();
  state.cells = backend_.options().cells;
  state.cells_free = ledger_.cells().available();
  const std::lock_guard lock(shared_.mutex);
  shared_.published = state;
}

}  // namespace loopspec

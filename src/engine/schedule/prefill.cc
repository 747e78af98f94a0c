#include "engine/schedule/prefill.h"

#include <algorithm>
#include <utility>

#include "engine/prompt_scores.h"

namespace loopspec {
namespace {

// Marks a scored chunk: ScorePrompt is synchronous, there is no ticket.
constexpr Ticket kScored = ~Ticket{0};

// Chunks of a prompt whose progress is reported double until one takes so long.
constexpr double kReportSeconds = 0.1;

}  // namespace

void Prefill::Begin(Sequence& sequence) {
  const std::span<const int32_t> prompt = sequence.to_prefill();
  const bool scored = sequence.scored();
  if (!scored) {
    const int64_t known =
        pages_.ExtendPrefixHit(prompt, sequence.prefilled, sequence.decoder->pages(),
                               sequence.reads, &sequence.prompt_planes);
    sequence.statistics().cached_tokens += known - sequence.prefilled;
    sequence.prefilled = sequence.committed = known;
    if (known == std::ssize(prompt)) return EndOfPrompt(sequence);
  }
  const auto start = static_cast<size_t>(sequence.prefilled);
  const int most = sequence.tells_progress() ? std::min(sequence.part, chunk_) : chunk_;
  size_t length = std::min(static_cast<size_t>(most), prompt.size() - start);
  const auto fork = static_cast<size_t>(sequence.fork);
  if (fork > start) length = std::min(length, fork - start);
  const PrefillPlan plan{PlanOf(sequence.decoder->pages()), static_cast<int32_t>(start),
                         prompt.subspan(start, length), sequence.reads.recurrence};
  end_ = static_cast<int64_t>(start + length);
  timer_.Reset();
  if (scored) {
    ScorePrompt(backend_, plan, sequence.request->prompt, sequence.prompt_logprobs(),
                sequence.request->on_logits, sequence.scores);
    ticket_ = kScored;
  } else {
    ticket_ = backend_.SubmitPrefill({&plan, 1});
  }
  sequence_ = &sequence;
}

bool Prefill::Done() {
  return sequence_ != nullptr && (ticket_ == kScored || backend_.PrefillDone(ticket_));
}

void Prefill::Finish() {
  Sequence& sequence = *std::exchange(sequence_, nullptr);
  if (ticket_ != kScored) backend_.WaitPrefill(ticket_);
  sequence.prefilled = sequence.committed = end_;
  const std::span<const int32_t> prompt = sequence.to_prefill();
  // At once, not at the prompt's end: others with the same beginning may wait for their chunk.
  pages_.CachePrefix(prompt.first(static_cast<size_t>(end_)), sequence.decoder->pages(),
                     sequence.prompt_planes, end_ == std::ssize(prompt) || end_ == sequence.fork);
  if (end_ == std::ssize(prompt)) return EndOfPrompt(sequence);
  if (!sequence.tells_progress()) return;
  if (timer_.Seconds() < kReportSeconds) sequence.part *= 2;
  sequence.stream->PushProgress(end_, std::ssize(prompt));
}

void Prefill::EndOfPrompt(Sequence& sequence) {
  sequence.statistics().prefill_seconds = sequence.admitted.Seconds();
  sequence.decoded.Reset();
  sequence.stage = Stage::kDecode;
}

}  // namespace loopspec

#include "engine/schedule/decode_step.h"

#include <algorithm>

#include "base/timer.h"

namespace loopspec {

DecodeStep::DecodeStep(Backend& backend, int max_running, int max_rows, const StepCost& cost)
    : backend_(backend),
      max_rows_(max_rows),
      cost_(cost),
      chooser_(backend.spec().recurrence, 1, backend.options().cells) {
  // As much as the largest step there can be, so that few allocate.
  const auto rows = static_cast<size_t>(backend.options().cells);
  plan_.sequences.reserve(static_cast<size_t>(max_running));
  plan_.commits.reserve(rows);
  plan_.rows.reserve(rows);
  plan_.readouts.reserve(rows);
  plan_.chains.reserve(rows * std::min<size_t>(64, rows));
  loads_.reserve(static_cast<size_t>(max_running));
  rows_.reserve(rows);
  advance_.reserve(rows);
}

void DecodeStep::Run(std::span<Sequence* const> sequences) {
  const Timer host;
  sequences_ = sequences;
  ChooseRows();
  for (Sequence* sequence : sequences_) {
    if (const auto& before_step = sequence->request->laboratory.before_step)
      before_step(*sequence->decoder);
  }
  const int64_t planes = Plan();
  planning_ = host.Seconds();
  result_ = &backend_.Wait(backend_.Submit(plan_));
  for (const Sequence* sequence : sequences_) {
    if (const auto& after_step = sequence->request->laboratory.after_step)
      after_step(plan_, *result_);
  }
  Observe(planes);
}

void DecodeStep::ChooseRows() {
  loads_.clear();
  bool awaits_first_token = false;
  size_t drafts = 0;  // of a token at most
  for (const Sequence* sequence : sequences_) {
    loads_.push_back(sequence->decoder->load());
    drafts = std::max(drafts, loads_.back().depths.size());
    awaits_first_token = awaits_first_token || sequence->reported == 0;
  }
  drafting_ = DraftsGain(loads_, backend_.spec().recurrence, max_rows_, drafting_, cost_.cost());
  for (Sequence* sequence : sequences_) {  // what has been begun goes on either way
    if (sequence->decoder->drafts_are_optional()) sequence->decoder->set_drafting(drafting_);
  }
  if (sequences_.size() < 2) return;  // alone in the step, it has chosen already
  rows_.clear();
  for (size_t i = 0; i < sequences_.size(); ++i)
    sequences_[i]->decoder->ListRows(static_cast<int32_t>(i), rows_);
  if (!drafting_) AwaitEachOther();
  chooser_.set_readouts(static_cast<int>(drafts) + 1);
  const int limit =
      RowLimit(static_cast<int>(sequences_.size()), max_rows_, awaits_first_token, cost_.cost());
  chooser_.Choose(rows_, limit, cost_.cost(), advance_);
  size_t at = 0;
  for (Sequence* sequence : sequences_) {
    const auto count = static_cast<size_t>(sequence->decoder->tree().size());
    sequence->decoder->Choose(std::span(advance_).subspan(at, count));
    at += count;
  }
}

// Without drafts a token is one step of R recurrences if all begin together, and a few where one of
// them samples from its drafts and is read out at their depths. So a row that is about to begin
// waits for those under way, R - 1 recurrences at most. No row waits to be put into a group.
void DecodeStep::AwaitEachOther() {
  const bool wait =
      std::any_of(rows_.begin(), rows_.end(), [](const RowState& row) { return row.depth > 0; });
  for (RowState& row : rows_) row.held = wait && row.depth == 0;
}

// Returns how many planes the step reads.
int64_t DecodeStep::Plan() {
  plan_.Clear();
  plan_.recurrences = backend_.spec().recurrence;
  for (const Sequence* sequence : sequences_)
    plan_.recurrences = std::min(plan_.recurrences, sequence->decoder->RecurrencesToReadout());
  int64_t planes = 0;
  for (Sequence* sequence : sequences_) {
    LoopSpec& decoder = *sequence->decoder;
    sequence->first_readout = plan_.readouts.size();
    sequence->committed = decoder.decided();
    planes -= decoder.statistics().planes;
    decoder.Plan(plan_.recurrences, plan_);
    planes += decoder.statistics().planes;
  }
  return planes;
}

// Counts what the step took as the time of a step that has its rows, all at their mean context.
void DecodeStep::Observe(int64_t planes) {
  if (plan_.rows.empty()) return;
  int64_t context = 0;
  for (const RowPlan& row : plan_.rows) context += row.position - row.chain_length;
  const auto rows = static_cast<int64_t>(plan_.rows.size());
  cost_.Observe(static_cast<int>(rows), static_cast<int>(planes / plan_.recurrences),
                context / rows, result_->recur_seconds / plan_.recurrences);
}

std::span<const Decision> DecodeStep::DecisionsOf(const Sequence& sequence, size_t begin,
                                                  size_t end) {
  const auto decisions = std::span(result_->decisions).subspan(begin, end - begin);
  const std::optional<AssumedAcceptance>& assumed = sequence.request->laboratory.assumed;
  if (!assumed) return decisions;
  assumed_.assign(decisions.begin(), decisions.end());
  AssumeOutcomes(*assumed, std::span(plan_.readouts).subspan(begin, end - begin),
                 backend_.spec().vocab, assumed_);
  return assumed_;
}

void DecodeStep::Absorb(size_t i) {
  Sequence& sequence = *sequences_[i];
  const size_t begin = sequence.first_readout;
  const size_t end =
      i + 1 < sequences_.size() ? sequences_[i + 1]->first_readout : plan_.readouts.size();
  Statistics& statistics = sequence.statistics();
  statistics.prelude_seconds += result_->prelude_seconds;
  statistics.recur_seconds += result_->recur_seconds;
  statistics.readout_seconds += result_->readout_seconds;
  const Timer host;
  sequence.decoder->Absorb(DecisionsOf(sequence, begin, end));
  statistics.host_seconds += planning_ + host.Seconds();
}

}  // namespace loopspec

#include "engine/schedule/schedule.h"

#include <algorithm>

#include "decode/load_choice.h"

namespace loopspec {
namespace {

// How much longer than without drafts a recurrence may take while a first token is awaited.
constexpr double kFirstTokenDelay = 1.25;
// Drafts are taken up again only for a gain beyond the error of the estimate.
constexpr double kDraftingGain = 1.03;

// Preempted sequences come first and in order: no later one may take the pages that one waits for.
// Then those that wait, in order of arrival; but a choice whose prompt is being prefilled for
// another choice shares those pages when they are written.
NextAction NextAdmission(const ScheduleView& view) {
  int running = 0, preempted = -1, waiting = -1;
  const SequenceView* sibling = nullptr;  // the oldest running choice of the latest submission
  for (int i = 0; i < std::ssize(view.sequences); ++i) {
    const SequenceView& sequence = view.sequences[static_cast<size_t>(i)];
    const bool shares = sibling != nullptr && sibling->submission == sequence.submission;
    if (sequence.running()) {
      ++running;
      if (!shares) sibling = &sequence;
    } else if (sequence.stage == Stage::kPreempted) {
      if (preempted < 0) preempted = i;
    } else if (sequence.stage == Stage::kWaiting && waiting < 0) {
      if (!shares || sibling->stage != Stage::kPrefill) waiting = i;
    }
  }
  if (preempted >= 0) return {Action::kResume, preempted};
  if (waiting >= 0 && running < view.max_running) return {Action::kAdmit, waiting};
  return {};
}

// The prompt that has waited longest for a chunk; between equals the younger, which is the newer
// one and may be short. None waits forever: those that come later have waited less.
//
// With drafts a step is a few recurrences. Between two chunks the streams get a token each, or as
// many recurrences as one takes without drafts: those recurrences have many rows, and prompts that
// wait for all R of them wait much longer than drafts gain.
int NextChunk(const ScheduleView& view) {
  int next = -1;
  int64_t decoding = 0, waited_since = INT64_MAX;
  for (int i = 0; i < std::ssize(view.sequences); ++i) {
    const SequenceView& sequence = view.sequences[static_cast<size_t>(i)];
    decoding += sequence.stage == Stage::kDecode ? 1 : 0;
    if (sequence.stage != Stage::kPrefill || sequence.last_chunk > waited_since) continue;
    next = i;
    waited_since = sequence.last_chunk;
  }
  const bool streams_come_first = view.recurrences < view.recurrence && view.tokens < decoding;
  return streams_come_first ? -1 : next;
}

// Pages go to the oldest first. When they run out the youngest sequence is preempted, so the oldest
// never is, and every sequence gets through in the end.
int NextPreemption(const ScheduleView& view) {
  int64_t missing = 0;
  int youngest = -1;
  for (int i = 0; i < std::ssize(view.sequences); ++i) {
    const SequenceView& sequence = view.sequences[static_cast<size_t>(i)];
    if (sequence.running()) youngest = i;
    if (sequence.stage == Stage::kDecode) missing += sequence.pages_missing;
  }
  return missing > view.pages_free ? youngest : -1;
}

// Whether drafts gain anything at this load.
bool DraftsPay(const RowsView& view, const StepCost& cost) {
  LoadQuestion question;
  question.sequences = static_cast<int>(view.sequences.size());
  question.recurrence = view.recurrence;
  question.most_rows = view.max_rows;
  double drafting = 0, first_depth = 0, second_depth = 0, first = 0, second = 0, context = 0;
  for (const DecodeView& sequence : view.sequences) {
    context += static_cast<double>(sequence.context);
    if (sequence.depths.empty()) continue;
    ++drafting;
    question.proposals = static_cast<int>(sequence.depths.size());
    first_depth += sequence.depths[0];
    second_depth += sequence.depths.size() > 1 ? sequence.depths[1] : view.recurrence;
    first += sequence.first;
    second += sequence.second;
  }
  if (question.sequences < 2 || drafting == 0) return true;
  question.context = context / question.sequences;
  question.first_depth = first_depth / drafting;
  question.second_depth = second_depth / drafting;
  question.first = first / drafting;
  question.second = second / drafting;
  return DraftingRate(question, cost) >
         (view.drafting ? 1.0 : kDraftingGain) * PlainRate(question, cost);
}

// All R recurrences of a first token lie before it, and drafts of others, which make them longer,
// gain nothing there: so while one is awaited only as many rows advance as cost little. The other
// drafts wait.
int RowLimit(const RowsView& view, const StepCost& cost) {
  const int roots = static_cast<int>(view.sequences.size());
  const int limit = std::max(view.max_rows, roots);
  if (std::none_of(view.sequences.begin(), view.sequences.end(),
                   [](const DecodeView& sequence) { return sequence.awaits_first_token; }))
    return limit;
  const double longest = kFirstTokenDelay * cost.Recurrence(roots);
  int rows = roots;
  while (rows < limit && cost.Recurrence(rows + 1) <= longest) ++rows;
  return rows;
}

}  // namespace

NextAction Schedule(const ScheduleView& view) {
  if (!view.admission_closed) {
    const NextAction next = NextAdmission(view);
    if (next.sequence >= 0) return next;
  }
  if (view.chunk == ScheduleView::Chunk::kNone) {
    const int next = NextChunk(view);
    if (next >= 0) return {Action::kBeginChunk, next};
  }
  if (view.chunk == ScheduleView::Chunk::kInFlight) return {Action::kCheckChunk};
  const int next = NextPreemption(view);
  if (next >= 0) return {Action::kPreempt, next};
  return {Action::kStep};
}

RowSchedule ScheduleRows(const RowsView& view, const StepCost& cost) {
  RowSchedule rows;
  rows.drafting = DraftsPay(view, cost);
  rows.in_phase =
      !rows.drafting &&
      std::all_of(view.sequences.begin(), view.sequences.end(), [](const DecodeView& sequence) {
        return sequence.depths.empty() || sequence.drafts_are_optional;
      });
  rows.limit = RowLimit(view, cost);
  return rows;
}

}  // namespace loopspec

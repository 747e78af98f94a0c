// The policy: every choice that the scheduler makes between requests, as pure functions of a view.
//
// `Schedule` says what comes next. A scheduling step asks it again after everything it has done,
// until the answer is kStep; `ScheduleRows` then says how the rows of the step are shared out. What
// is fair, who waits and who is preempted is decided here and nowhere else; whether keys and values
// fit, and how anything is done, is known to the other parts.
//
// Who asks is a *share* (a key, or an address). Shares divide the engine by weight: places among
// those that run, and the computing of prompts. Within a share the highest priority comes first and
// then the oldest, so that the first of many equal prompts is not as late as the last; but neither
// a short prompt nor a short request waits long for long ones:
//   - a prompt that fits into one chunk passes longer ones, every other chunk;
//   - a request that has waited a second for a place takes that of one with kShortFactor times its
//     work, which is preempted meanwhile; an eighth of the places at most is taken so;
//   - while an answer gets its first tokens, chunks of longer prompts take a third of the time.
#pragma once

#include <cstdint>
#include <span>

#include "decode/step_cost.h"

namespace loopspec {

enum class Stage { kWaiting, kPrefill, kDecode, kPreempted, kEnded };

// ---- What comes next ----

struct SequenceView {
  Stage stage = Stage::kWaiting;
  uint64_t submission = 0;  // choices of one submission have the same prompt
  int pages_missing = 0;    // KV pages that its next step may need beyond those that it holds

  int share = 0;            // index into ScheduleView::shares
  int priority = 0;         // within its share: the lower comes first
  int64_t prompt_left = 0;  // positions of its prompt that are not computed
  int64_t work_left = 0;    // the same and its tokens to come, at most
  double waited = 0;        // seconds, where it waits to be admitted
  bool begins = false;      // decodes, and has had few tokens

  bool running() const { return stage == Stage::kPrefill || stage == Stage::kDecode; }
};

struct ShareView {
  double weight = 1;
  double prefilled = 0;  // positions of prompts that it got computed, over its weight
};

struct ScheduleView {
  std::span<const SequenceView> sequences;  // the oldest first
  std::span<const ShareView> shares;        // of those that have sequences
  int max_running = 1;
  int pages_free = 0;
  int recurrence = 1;  // R

  // Of this scheduling step:
  bool admission_closed = false;  // one did not fit, and none may pass it; or its time is over
  enum class Chunk {
    kNone,      // nothing is in flight, and none was begun in this step
    kInFlight,  // and not looked at in this step
    kSettled,   // nothing more about chunks in this step
  } chunk = Chunk::kNone;

  // Since the last chunk of prefill was begun:
  int64_t recurrences = INT32_MAX;  // that steps have made ...
  int64_t tokens = 0;               // ... and tokens that all streams got from them
  double chunk_seconds = 0;         // that it took ...
  double step_seconds = 0;          // ... and that steps took since it ended
  bool chunk_passed = false;        // it passed an older prompt

  int chunk_positions = INT32_MAX;  // of a chunk, at most
  bool pages_short = false;         // the last one to be admitted or resumed did not fit
  double short_wait = 1;            // seconds after which a short request waits no longer
};

enum class Action {
  kResume,      // a preempted sequence gets its pages back and goes on
  kAdmit,       // a waiting sequence begins
  kBeginChunk,  // the next chunk of a prompt is prefilled
  kCheckChunk,  // the chunk in flight, if it is done
  kPreempt,     // a sequence gives its pages up for others
  kReplace,     // a sequence gives its place up for `by`, which begins or goes on
  kStep,        // one step of all that decode
};

struct NextAction {
  Action action = Action::kStep;
  int sequence = -1;    // index into the view
  int by = -1;          // kReplace: likewise
  bool passes = false;  // kBeginChunk: an older prompt

  bool operator==(const NextAction&) const = default;
};

NextAction Schedule(const ScheduleView& view);

// ---- The rows of a step ----

// One sequence that decodes.
struct DecodeView {
  std::span<const int> depths = {};  // of its proposals
  double first = 0, second = 0;      // share of its tokens from the first draft, from the second
  int64_t context = 0;               // committed positions
  bool drafts_are_optional = false;  // its text is the same without drafts
  bool awaits_first_token = false;
};

struct RowsView {
  std::span<const DecodeView> sequences;
  int recurrence = 1;  // R
  int max_rows = 1;
  bool drafting = true;  // in the step before
};

struct RowSchedule {
  bool drafting = true;   // whether sequences whose drafts are optional make them
  bool in_phase = false;  // nobody drafts: tokens begin together
  int limit = 1;          // rows of the step at most

  bool operator==(const RowSchedule&) const = default;
};

RowSchedule ScheduleRows(const RowsView& view, const StepCost& cost);

}  // namespace loopspec

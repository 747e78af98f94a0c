// The policy: every choice that the scheduler makes between requests, as pure functions of a view.
//
// `Schedule` plans a scheduling step: who is admitted, which prompt gets a chunk, for how many
// pages cached prefixes are evicted and who is preempted if that does not suffice. What is fair,
// who waits and who is preempted is decided here and in turns.h, which says whose sequences take
// part in a step; whether keys and values fit, and how anything is done, is known to the other
// parts.
//
// Who asks is a *tenant* (a key, or an address). Tenants divide the engine by weight: places among
// those that run, the computing of prompts, and tokens (turns.h). Within a tenant the highest
// priority comes first and then the oldest, so that the first of many equal prompts is not as late
// as the last; but neither a short prompt nor a short request waits long for long ones:
//   - a prompt that fits into one chunk overtakes longer ones, every other chunk;
//   - a request that has waited a second for a place takes that of one with kShortFactor times its
//     work, which is preempted meanwhile; an eighth of the places at most is taken so;
//   - while an answer gets its first tokens, chunks of longer prompts take a third of the time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "decode/step_cost.h"

namespace loopspec {

enum class Stage { kWaiting, kPrefill, kDecode, kPreempted, kEnded };

// ---- A scheduling step ----

struct SequenceView {
  Stage stage = Stage::kWaiting;
  uint64_t submission = 0;  // choices of one submission have the same prompt
  int pages_missing = 0;    // KV pages that its next step may need beyond those that it holds

  int tenant = 0;           // index into ScheduleView::tenants
  int priority = 0;         // within its tenant: the lower comes first
  int64_t prompt_left = 0;  // positions of its prompt that are not computed
  int64_t work_left = 0;    // the same and its tokens to come, at most
  double waited = 0;        // seconds, where it waits to be admitted
  bool begins = false;      // decodes, and has had few tokens

  bool running() const { return stage == Stage::kPrefill || stage == Stage::kDecode; }
  bool wants_a_place() const { return stage == Stage::kWaiting || stage == Stage::kPreempted; }
};

struct TenantView {
  double weight = 1;
  double prefilled = 0;  // positions of prompts that it got computed, over its weight
  double decoded = 0;    // tokens that it got, over its weight: see turns.h
  uint64_t id = 0;       // Request::tenant
  int sequences = 0;     // that are here
};

// What earlier steps did, as far as it decides what comes next.
struct Pacing {
  // Since the last chunk of a prompt was begun:
  int64_t loops = INT32_MAX;  // times that steps went through the recurrent block
  int64_t tokens = 0;         // that all streams got
  double chunk_seconds = 0;   // that the chunk took
  double step_seconds = 0;    // that steps took since it ended
  bool overtook = false;      // the chunk was that of a prompt that overtook an older one

  bool pages_short = false;  // the last sequence to be admitted or resumed did not fit

  void BeginChunk(bool overtakes) { *this = {0, 0, 0, 0, overtakes, pages_short}; }
};

struct ScheduleView {
  std::span<const SequenceView> sequences;  // the oldest first
  std::span<const TenantView> tenants;      // at least those that have sequences
  Pacing pacing;
  int max_running = 1;
  int pages_free = 0;
  int recurrence = 1;               // R
  int chunk_positions = INT32_MAX;  // of a chunk, at most
  double short_wait = 1;            // seconds after which a short request waits no longer
  bool admission_open = true;       // false: one did not fit in this step, and none may pass it
  bool chunk_in_flight = false;     // the chunk of an earlier step has not been waited for
};

// A waiting sequence begins, or a preempted one goes on.
struct Admit {
  int sequence = -1;  // index into the view
  int replaces = -1;  // index of who is preempted for its place; -1: a place is free

  bool operator==(const Admit&) const = default;
};

struct Plan {
  // In this order, until one does not fit. A plan that admits somebody has nothing else: which
  // pages and which part of a prompt are missing is known only then, and the view is another.
  std::vector<Admit> admit;
  int chunk = -1;          // whose prompt gets a chunk; -1: none
  bool overtakes = false;  // that prompt overtakes an older one
  // Pages that the step may need: cached prefixes are evicted until they are free. Where that does
  // not suffice, sequences are preempted in this order until it does.
  int pages = 0;
  std::vector<int> preempt;

  bool operator==(const Plan&) const = default;
};

Plan Schedule(const ScheduleView& view);

// ---- The rows of a step ----

// Rows of the step at most, for so many sequences that decode.
int RowLimit(int sequences, int max_rows, bool awaits_first_token, const StepCost& cost);

}  // namespace loopspec

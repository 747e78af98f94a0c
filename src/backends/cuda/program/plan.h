// The plan: what one step does, as the kernels read it. StepEncoder writes it.
#pragma once

#include <cstdint>

#include "backends/cuda/program/op.h"

namespace loopspec::cuda {

struct RowInfo {
  int32_t cell;
  int32_t token;
  int32_t position;
  int32_t depth;
  int32_t plane;     // of the stack's first layer in the first recurrence
  int32_t partial;   // its first attention partial
  int32_t partials;  // and how many it has
};

// A row as attention sees it.
struct QueryRow {
  int32_t row;  // index into the phase's rows
  int32_t partial;
  int32_t position;
};

// A span of splits, one after the other, in one plane.
struct alignas(16) KeySpan {
  // Where the pages of their committed positions are: (page * slots + slot) * kv_heads, which is
  // the number of the first KV head's keys and values. A slot is a plane, unless a plan of keys
  // says where planes lie (kv/kept_planes.h).
  int32_t pages[kSpanPages];
  int32_t first;          // split of the first page with which the span begins
  int32_t split, splits;  // that split of the row, and how many there are
  int32_t whole;          // 1: all positions are committed; 0: a single partial, a row's tail
};

// A unit of attention: `count` rows of one sequence that read the same keys over a span of splits,
// mostly rows of one plane. One warp does it for one KV head.
struct alignas(16) AttentionUnit {
  KeySpan keys;
  int32_t plane;  // of the first row, as in RowInfo
  int32_t first;  // into the phase's query rows
  int32_t count;
  int32_t position;      // of the first row; the only row, unless the span is whole
  int32_t committed;     // positions below lie in pages
  int32_t cell;          // of the first row
  int32_t chain;         // its chain: index into the plan's chains
  int32_t row, partial;  // of the first row, as in QueryRow
  int32_t merged;        // splits of a partial; spans begin with a partial's first
};

struct CommitInfo {
  int32_t cell;
  int32_t page;
  int32_t slot;  // position within the page
};

// Whether rows of a phase attend to keys and values that other rows write in the same step. Only
// small batches ask: larger ones have a grid barrier after every operation anyway.
enum class PhaseRelation : int32_t {
  kNone,
  kEarlierRecurrence,  // an ancestor wrote them in an earlier recurrence of the step: a grid
                       // barrier ends each recurrence
  kSameDepth,          // an ancestor writes them in the same operation: a grid barrier follows each
                       // operation that writes keys
};

struct PlanHeader {
  uint32_t barrier[kPhases];  // arrivals of CTAs, by a launch's first phase; zero at the start
  uint32_t epoch[kPhases];    // of the phase's first operation; no operation before had it
  uint32_t given_up;          // set by the watchdog (device/watchdog.cuh)
  int32_t recurrences;
  PhaseRelation relation[kPhases];
  int32_t commits;
  int32_t rows[kPhases];
  int32_t units[kPhases];
  int32_t merged[kPhases];        // 1: some partials are of several splits
  int32_t longest_span[kPhases];  // splits of the longest span
  int32_t spans[kPhases];         // where that is more than one: whole units, which come first
  // Byte offsets from the header.
  int32_t row_at[kPhases];
  int32_t query_rows_at[kPhases];
  int32_t unit_at[kPhases];
  // By a plan of keys each recurrence finds its keys elsewhere: KeySpan [recurrence - 1][unit].
  // 0: a recurrence's planes follow those of the one before.
  int32_t later_spans_at[kPhases];
  int32_t chains_at;
  int32_t chain_count;
  int32_t commits_at;
  int32_t commit_places_at;  // by a plan: [commit][plane]: page * slots + slot, or -1; 0: no plan
  int32_t readouts_at;
};

}  // namespace loopspec::cuda

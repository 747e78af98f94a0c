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
  int32_t plane;    // of the stack's first layer in the first recurrence
  int32_t partial;  // its first attention partial
  int32_t splits;   // and how many it has
};

// A row as attention sees it.
struct QueryRow {
  int32_t row;  // index into the phase's rows
  int32_t partial;
  int32_t position;
};

// A unit of attention: `count` rows of one sequence and plane over the positions of one split. One
// warp does it for one KV head.
struct alignas(16) AttentionUnit {
  int32_t first;  // into the phase's query rows
  int32_t count;
  int32_t split;
  int32_t plane;      // as in RowInfo
  int32_t position;   // of the first row; the only row, when the split has uncommitted positions
  int32_t committed;  // positions below lie in pages
  int32_t cell;       // of the first row
  int32_t chain;      // its chain: index into the plan's chains
  int32_t page;
  int32_t row, partial;  // of the first row, as in QueryRow
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
  kSameDepth,  // an ancestor writes them in the same operation: a grid barrier follows each
               // operation that writes keys
};

struct PlanHeader {
  uint32_t barrier[kPhases];  // arrivals of CTAs, by a launch's first phase; zero at the start
  uint32_t epoch[kPhases];    // of the phase's first operation; no operation before had it
  int32_t recurrences;
  PhaseRelation relation[kPhases];
  int32_t commits;
  int32_t rows[kPhases];
  int32_t units[kPhases];
  // Byte offsets from the header.
  int32_t row_at[kPhases];
  int32_t query_rows_at[kPhases];
  int32_t unit_at[kPhases];
  int32_t chains_at;
  int32_t chain_count;
  int32_t commits_at;
  int32_t readouts_at;
};

}  // namespace loopspec::cuda

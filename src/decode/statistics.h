// What a decoder reports about its steps and tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backends/backend.h"

namespace loopspec {

struct DecodeStatistics {
  std::vector<int64_t> accepted;  // tokens by proposal
  int64_t fallback = 0;           // tokens decided without an accepted draft
  int64_t drafted = 0;            // drafts made, whether or not they were used
  int64_t gate_evaluated = 0;     // later proposals considered ...
  int64_t gate_opened = 0;        // ... and let through
  int64_t guesses = 0;            // children started before their parent's draft ...
  int64_t adopted = 0;            // ... of which the draft was the guess
  int64_t early = 0;              // committed tokens whose branch had started on a guess
  int64_t steps = 0;              // batched recurrences
  int64_t row_steps = 0;          // rows summed over them
  int rows_peak = 0;
  std::vector<int64_t> rows_histogram;  // steps by number of rows
  int64_t readouts = 0;                 // rows through C
  int64_t preludes = 0;                 // rows through P
  int64_t readout_steps = 0;            // steps in which C ran
  int64_t prelude_steps = 0;            // and P
  int64_t planes = 0;  // (depth, recurrence) pairs whose committed keys and values were read
  // Positions whose keys and values were read, per layer of B, of P and of C: rows of one depth
  // share the committed ones.
  int64_t kv_positions = 0, prelude_positions = 0, readout_positions = 0;

  double rows_mean() const {
    return steps > 0 ? static_cast<double>(row_steps) / static_cast<double>(steps) : 0.0;
  }
};

// Adds what a decoder put into a step: its rows, the first of which is the step's row `first_row`,
// and their readouts. `depth_seen` is scratch of R entries.
void CountStep(std::span<const RowPlan> rows, int32_t first_row,
               std::span<const ReadoutPlan> readouts, int recurrences,
               std::vector<char>& depth_seen, DecodeStatistics& statistics);

}  // namespace loopspec

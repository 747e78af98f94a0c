// What a step costs on this machine with this model, in seconds, as far as the choice of rows needs
// to know. A plain type: the engine measures it, `decode` only reads it.
#pragma once

#include <array>
#include <cstdint>

namespace loopspec {

// What a step does: of one that is planned, or on average of many.
struct StepWork {
  int recurrences = 1;         // that every row goes through
  int rows = 0;                // that advance
  double row_positions = 0;    // committed positions attended to, over the rows ...
  double plane_positions = 0;  // ... and read, over the distinct planes of a recurrence
  double preludes = 0;         // rows that pass P first; under 1: the share of steps with one
  double readouts = 0;         // rows that are read out; under 1: the share of steps with one
};

struct StepSeconds {
  double prelude = 0, recur = 0, readout = 0;
  double rest = 0;  // whatever it does
  double total() const { return prelude + recur + readout + rest; }
};

struct StepCost {
  // Row counts at which a recurrence was measured; between them costs are linear.
  static constexpr std::array<int, 9> kRows = {1, 2, 4, 8, 16, 32, 64, 128, 256};

  std::array<double, 9> recurrence{1, 1, 1, 1, 1, 1, 1, 1, 1};  // by kRows, short context
  double plane_position = 0;  // reading one committed position at one depth, for all its rows
  double row_position = 0;    // attending to one position, for each row
  double prelude = 0, prelude_row = 0;  // P in a step that has one; each row of it
  double readout = 0, readout_row = 0;  // C, head and sampling in a step that has them; each row
  double step = 0;                      // what every step costs whatever it does
  int64_t context = -1;  // committed positions at which costs are taken; -1: of each sequence

  // One recurrence of `rows` rows, without attention to committed positions.
  double Recurrence(int rows) const;
  // The cost of a step: the one place where it is worked out.
  StepSeconds Of(const StepWork& work) const;
};

}  // namespace loopspec

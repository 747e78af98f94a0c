// What decoding would cost, without a model: the real decoder on a backend that only counts, with
// outcomes of verification drawn at given rates.
#pragma once

#include <cstdint>
#include <vector>

#include "backends/backend.h"
#include "decode/assumed.h"
#include "decode/step_cost.h"
#include "model/model.h"

namespace loopspec {

struct SimulationRequest {
  int recurrence = 4;
  std::vector<int> depths;    // empty: autoregressive
  AssumedAcceptance assumed;  // rates of each proposal, gate, guesses
  int64_t context = 1024;     // committed positions, at which costs are taken
  int tokens = 4000;
  int text_tokens = 0;   // of one text: each begins and ends anew, as the clock of a request does
                         // (docs/measuring.md); 0: all tokens are one text
  int max_rows = 0;      // 0: none
  int group = 1;         // 0: chosen by cost
  bool guesses = false;  // begin children on guesses
  bool every_branch = false;  // the paper's schedule: see Laboratory
  uint64_t seed = 1;
  StepCost cost;
};

// What a planned step should take at `context` committed positions. `seen` is scratch.
StepSeconds SecondsOf(const StepPlan& plan, const StepCost& cost, double context,
                      std::vector<char>& seen);

// Per committed token, but for rows.
struct SimulationResult {
  double steps = 0;            // recurrences of the batch
  double planes = 0;           // (depth, recurrence) pairs whose keys and values are read
  double readouts = 0;         // steps in which C runs
  double preludes = 0;         // steps in which P runs
  double rows = 0;             // mean rows of a step
  int rows_peak = 0;           // most rows of a step
  double tokens_per_pass = 0;  // tokens per R recurrences: the gamma that happened
  double seconds = 0;          // by `cost`
  int group = 1;               // at the end
};

SimulationResult Simulate(const SimulationRequest& request);

// What decoding reads: the simplest cost there is, and the bound of every other.
struct ReadBytes {
  double recurrence = 0;            // weights of B
  double prelude = 0, readout = 0;  // of P, and of C with the head
  double position = 0;              // keys and values of one committed position at one depth
  double prelude_position = 0, readout_position = 0;  // the same of P and of C
};
ReadBytes BytesOf(const Model& model, ComputeMode compute);
// Seconds per step when reading at `bandwidth` bytes per second is all that takes time.
StepCost CostOfReading(const ReadBytes& bytes, double bandwidth);
// Bytes per committed token.
double BytesPerToken(const SimulationResult& result, const ReadBytes& bytes, int64_t context);

}  // namespace loopspec

// Whether requests that share their steps gain from drafts at all.
//
// A draft costs a readout, whether or not its child gets a row. When the device is full with one
// row for each request, children get none, and drafts are wasted work. Greedy and coupled text does
// not depend on drafts (a draft is accepted exactly when it is what verification decides anyway),
// so there they can be left out until the load falls. Cascade sampling draws its text from them:
// there they stay.
#pragma once

#include <cstdint>
#include <span>

#include "decode/step_cost.h"

namespace loopspec {

// One of the requests that share the steps.
struct RequestLoad {
  std::span<const int> depths = {};  // of its proposals
  double first = 0, second = 0;      // share of its tokens from the first draft, from the second
  int64_t context = 0;               // committed positions
};

// Whether drafts gain anything for `requests` in steps of up to `most_rows` rows. `drafting`: they
// are made so far.
bool DraftsGain(std::span<const RequestLoad> requests, int recurrence, int most_rows, bool drafting,
                const StepCost& cost);

// The same requests as their means, by which their rates are estimated.
struct LoadQuestion {
  int sequences = 1;        // requests that share the steps
  int recurrence = 1;       // R
  double first_depth = 1;   // d1, mean over the requests
  double second_depth = 0;  // d2, 0: none
  int proposals = 1;        // readouts of a branch before its last
  double first = 0.9;       // share of tokens from the first draft ...
  double second = 0.075;    // ... from the second
  double context = 0;       // committed positions of a request, mean
  int most_rows = 1;        // of a step
};

// Tokens per second of all requests together, by what steps cost: without drafts, a row each ...
double PlainRate(const LoadQuestion& question, const StepCost& cost);
// ... and with drafts and the best number of rows.
double DraftingRate(const LoadQuestion& question, const StepCost& cost);

}  // namespace loopspec

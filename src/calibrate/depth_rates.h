// How often the drafts of given depths are accepted, worked out from the distributions of all
// depths at one position: no decoding, no draws. Pure functions.
#pragma once

#include <vector>

#include "calibrate/depth_readouts.h"

namespace loopspec {

// Proposal depths and what verification makes of them, as shares of all positions.
struct DepthRates {
  std::vector<int> depths;       // d1 < ... < dk < R, k from 1 to 3
  std::vector<double> accepted;  // tokens from each proposal; the rest are fallbacks
  std::vector<double> gate;      // readouts of each later proposal at which its gate opens
};

// Adds one position, read out at every depth, to `sum`, whose shares are sums until they are
// divided by their number.
// Greedy decoding: a draft holds when it is the target's choice; a later depth drafts where its
// choice is none of the drafts before.
void AddGreedy(const PositionReadouts& readouts, DepthRates& sum);
// The cascade with gated residual proposals: the probability of each outcome, exactly, over all
// draws.
void AddCascade(const PositionReadouts& readouts, DepthRates& sum);

// Every admissible set of one or two depths, and of three. Where there would be more than a few
// hundred of three, these are over a grid that grows by about a third from depth to depth.
std::vector<std::vector<int>> AdmissibleDepths(int recurrence, int proposals);
bool TriplesAreThinned(int recurrence);

}  // namespace loopspec

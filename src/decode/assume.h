// Timing simulations: outcomes of verification drawn at given rates from the seed instead of
// decided by the model, so that the cost of steps can be timed at a known acceptance with any
// weights. Never part of real decoding.
#pragma once

#include <span>

#include "backends/backend.h"
#include "decode/branch_tree.h"
#include "decode/request.h"

namespace loopspec {

// Rewrites one decision. `proposal`: the proposal being made, -1 for verification. A later proposal
// appears exactly where the draw says that it will be the accepted one.
void AssumeOutcome(const AssumedAcceptance& assume, const DrawKey& key, int proposal,
                   std::span<const Proposal> recorded, int vocab, Decision& decision);

}  // namespace loopspec

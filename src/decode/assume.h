// Timing simulations: outcomes of verification drawn at given rates from the seed instead of
// decided by the model, so that the cost of steps can be timed at a known acceptance with any
// weights, or counted without any. Never part of real decoding.
#pragma once

#include <span>

#include "backends/backend.h"
#include "decode/branch_tree.h"
#include "decode/ngram_index.h"
#include "decode/request.h"

namespace loopspec {

// Rewrites one decision about the token at key.position. `proposal`: the proposal being made, -1
// for verification. A later proposal appears where the draw says that it will be accepted, at half
// of the positions where none before it will be, and at others just so often that the gate opens at
// the assumed rate in all.
void AssumeOutcome(const AssumedAcceptance& assume, const DrawKey& key, int proposal,
                   std::span<const Proposal> recorded, int vocab, Decision& decision);

// A guess for the token at key.position: offered and right at the assumed rates.
Guess AssumeGuess(const AssumedAcceptance& assume, const DrawKey& key, int vocab);

}  // namespace loopspec

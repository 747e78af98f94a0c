// Timing simulations: outcomes of verification drawn at given rates from the seed instead of
// decided by the model, so that the cost of steps can be timed at a known acceptance with any
// weights, or counted without any. Never part of real decoding.
#pragma once

#include <span>
#include <vector>

#include "backends/backend.h"
#include "decode/ngram_index.h"

namespace loopspec {

struct AssumedAcceptance {
  std::vector<double> rates;  // of each proposal; the rest is fallback
  double gate = 0;            // how often the gate opens in all; 0: only where the draft will win
  double guess_offered = 0;   // how often there is a guess for a token's successor ...
  double guess_right = 0;     // ... and how often it is the first draft
};

// Rewrites the decisions of a step, one for each of its readouts. A later proposal appears where
// the draw says that it will be accepted, at half of the positions where none before it will be,
// and at others just so often that the gate opens at the assumed rate in all. A verdict over no
// drafts stays as it is.
void AssumeOutcomes(const AssumedAcceptance& assumed, std::span<const ReadoutPlan> readouts,
                    int vocab, std::span<Decision> decisions);

// Guesses that are offered and right at the assumed rates, where outcomes are assumed too.
class AssumedGuesses : public GuessSource {
 public:
  AssumedGuesses(const AssumedAcceptance& assumed, int vocab) : assumed_(assumed), vocab_(vocab) {}
  Guess At(const DrawKey& token) const override;

 private:
  AssumedAcceptance assumed_;
  int vocab_;
};

}  // namespace loopspec

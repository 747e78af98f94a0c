// Timing simulations: outcomes of verification drawn at given rates from the seed instead of
// decided by the model, so that the cost of steps can be timed at a known acceptance with any
// weights, or counted without any. Never part of real decoding.
#pragma once

#include <memory>
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

// Rewrites the decisions of a step, one for each readout of `plan`. A later proposal appears where
// the draw says that it will be accepted, at half of the positions where none before it will be,
// and at others just so often that the gate opens at the assumed rate in all. A verdict over no
// drafts stays as it is.
void AssumeOutcomes(const AssumedAcceptance& assumed, const StepPlan& plan, int vocab,
                    std::span<Decision> decisions);

// The same as a backend: computes what `backend` computes, and decides as assumed.
std::unique_ptr<Backend> AssumeOutcomes(std::unique_ptr<Backend> backend,
                                        const AssumedAcceptance& assumed);

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

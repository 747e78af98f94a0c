// From logits to the distribution that tokens are drawn from.
//
// Order: mask, penalties and bias, top-n-sigma, temperature, top-k, top-p over what top-k left,
// min-p. Tokens rank by logit, equal logits by the lower id. Greedy takes the argmax after
// penalties and bias.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "base/host_device.h"
#include "base/philox.h"
#include "sampling/params.h"

namespace loopspec {

// A token's logit after the penalties for having been seen. `generated` counts it in the output;
// the prompt counts for the repetition penalty alone.
LOOPSPEC_HD inline float Penalised(float logit, int generated, float repetition, float presence,
                                   float frequency) {
  logit = logit > 0.0f ? logit / repetition : logit * repetition;
  if (generated > 0) logit -= presence + frequency * static_cast<float>(generated);
  return logit;
}

// Top-n-sigma: the least logit that is kept, n standard deviations below the largest one, `top`.
// The deviation is that of all finite logits, over their number. Temperature scales both sides, so
// that the same tokens are kept before and after it.
template <typename Team>
LOOPSPEC_HD float SigmaFloor(const Team& team, int vocab, const float* logits, float top, float n) {
  const auto finite = [=] LOOPSPEC_HD(int v) { return logits[v] - logits[v] == 0.0f; };
  const double count = team.Sum(vocab, [=] LOOPSPEC_HD(int v) { return finite(v) ? 1.0 : 0.0; });
  const double sum = team.Sum(
      vocab, [=] LOOPSPEC_HD(int v) { return finite(v) ? static_cast<double>(logits[v]) : 0.0; });
  const double mean = sum / count;
  const double squares = team.Sum(vocab, [=] LOOPSPEC_HD(int v) {
    const double away = finite(v) ? static_cast<double>(logits[v]) - mean : 0.0;
    return away * away;
  });
  return static_cast<float>(static_cast<double>(top) -
                            static_cast<double>(n) * sqrt(squares / count));
}

// Whether a mask allows a token: bit v % 32 of word v / 32.
LOOPSPEC_HD inline bool Allows(const uint32_t* mask, int v) {
  return (mask[v / 32] >> (v % 32) & 1u) != 0;
}

// Copies the logits of tokens that the mask allows; the others become -inf, which no later step
// brings back: penalties, bias and filters act on what is allowed alone.
void MaskLogits(std::span<const float> logits, std::span<const uint32_t> mask,
                std::span<float> out);

// Applies penalties (for the prefix's tokens) and bias in place.
void AdjustLogits(const SamplingParams& params, std::span<const TokenCount> counts,
                  std::span<float> logits);

// Index of the largest value; ties to the lowest id. NaN never wins.
int ArgMax(std::span<const float> values);

// Whether every value is a number. Raw logits always are in a sound checkpoint: no supported model
// masks logits with -inf, so a negative infinity is an overflow like a positive one.
bool AllFinite(std::span<const float> values);

// Working memory, reused from call to call.
struct FilterScratch {
  std::vector<uint64_t> keys, sorted;  // candidates in the making
  std::vector<int32_t> candidates;     // the tokens that may be kept, ranked
  std::vector<float> weights;          // of those that are
};

// Turns adjusted logits into probabilities in place; filtered tokens get exactly 0. Temperature
// must be above 0.
void FilteredSoftmax(const SamplingParams& params, std::span<float> logits, FilterScratch& scratch);

// The coupled sampler's noise for one token: standard Gumbel from (seed, choice, position, token).
float Gumbel(const DrawKey& key, uint32_t token);

// argmax over tokens of log p + Gumbel noise, p as FilteredSoftmax left it.
int CoupledChoice(const DrawKey& key, std::span<const float> probabilities);

// log softmax(logits)[token] in double, over the raw logits.
double LogSumExp(std::span<const float> logits);

}  // namespace loopspec

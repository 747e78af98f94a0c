// How tokens are chosen. The same parameters shape every proposal and the target.
#pragma once

#include <cstdint>
#include <vector>

namespace loopspec {

// cascade: the paper's rejection sampling. coupled: every readout of a position adds the same
// Gumbel noise and takes the argmax, so that a draft is accepted exactly when it is the target's
// own choice and the text does not depend on the decoder.
enum class Sampler { kCascade, kCoupled };

// What a proposal after the first is drawn from (the paper's ablation).
enum class LaterProposal {
  kGatedResidual,  // p_dj (-) q_1 ..., only when the deeper state withdraws confidence from each
                   // earlier draft
  kResidual,       // the same without the gate, earlier drafts masked out
  kNonResidual,    // p_dj itself, earlier drafts masked out
};

struct TokenBias {
  int32_t token = 0;
  float bias = 0.0f;
};

// The numbers alone, which a device can hold.
struct SamplingNumbers {
  float temperature = 0.0f;  // 0: greedy
  int top_k = 0;             // 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float top_n_sigma = 0.0f;         // 0 or less: off
  float repetition_penalty = 1.0f;  // on every token of prompt and output
  float presence_penalty = 0.0f;    // on tokens of the output
  float frequency_penalty = 0.0f;   // on tokens of the output, times their count

  bool greedy() const { return temperature <= 0.0f; }
  bool needs_counts() const {
    return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f;
  }
};

struct SamplingParams : SamplingNumbers {
  std::vector<TokenBias> bias;
  Sampler sampler = Sampler::kCascade;
  LaterProposal later = LaterProposal::kGatedResidual;

  // Greedy and coupled decisions compare choices; only the cascade compares distributions.
  bool needs_distributions() const { return !greedy() && sampler == Sampler::kCascade; }
};

}  // namespace loopspec

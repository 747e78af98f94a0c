// Decisions on the device: one CTA per readout turns logits into a token.
#pragma once

#include "backends/cuda/program/plan.h"
#include "sampling/cascade.h"
#include "sampling/params.h"

namespace loopspec::cuda {

inline constexpr int kMaxTopLogprobs = 32;

struct RecordedInfo {
  int32_t proposal;
  int32_t token;
};

struct ReadoutInfo {
  int32_t cell;
  int32_t verify;  // else: propose
  int32_t proposal;
  int32_t recorded_count;
  RecordedInfo recorded[kMaxProposals];
  DrawKey draw;
  SamplingNumbers numbers;
  Sampler sampler;
  LaterProposal later;
  int32_t counts_at, counts_length;  // TokenCount, byte offset from the plan
  int32_t bias_at, bias_length;      // TokenBias
  int32_t logprobs;
  int32_t mask;  // which of SamplingBuffers::masks; -1: every token is allowed
};

struct DecisionInfo {
  int32_t token;
  int32_t accepted;
  int32_t gate_open;
  int32_t finite;  // 0: the logits hold NaN or infinity, and nothing was decided
  float logprob;
  int32_t top_tokens[kMaxTopLogprobs];
  float top_logprobs[kMaxTopLogprobs];
};

struct SamplingBuffers {
  const PlanHeader* plan;
  int32_t vocab;
  const float* logits;   // [readout][vocab]
  float* work;           // [readout][vocab]
  float* distributions;  // [cell][proposal][vocab]: q of the cell's drafts; null while no step
                         // needed them
  int32_t proposals;
  const uint32_t* masks;    // [mask][ceil(vocab / 32)]; null while no readout has one
  DecisionInfo* decisions;  // [readout]
};

// 32-bit words of a mask.
inline constexpr int MaskWords(int vocab) {
  return (vocab + 31) / 32;
}

void LaunchSampling(const SamplingBuffers& buffers, int readouts, cudaStream_t stream);

}  // namespace loopspec::cuda

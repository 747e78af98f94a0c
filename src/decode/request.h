// What a decoder is asked to do, and what it decides.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "decode/acceptance.h"
#include "decode/statistics.h"
#include "decode/trace.h"
#include "sampling/params.h"

namespace loopspec {

// For timing only: verification outcomes drawn at given rates instead of decided by the model.
struct AssumedAcceptance {
  std::vector<double> rates;  // of each proposal; the rest is fallback
  double gate = 0;            // how often the gate opens in all; 0: only where the draft will win
  double guess_offered = 0;   // how often there is a guess for a token's successor ...
  double guess_right = 0;     // ... and how often it is the first draft
};

// Children that start before their parent's draft is drawn.
enum class EarlyChildren {
  kOff,
  kLookup,  // on what followed the last few tokens when they stood in the text before
};

struct DecodeRequest {
  std::vector<int32_t> prompt;  // at least one token
  SamplingParams sampling;
  std::vector<int>
      depths;            // d1 < ... < dk; empty: no drafts, autoregressive but for early children
  int max_tokens = 128;  // 0: for whoever only wants the prompt read, not decoded
  std::vector<int32_t> stop_tokens;  // any of them ends the text
  uint64_t seed = 0;
  uint32_t choice = 0;
  int logprobs = -1;   // -1: none; n: of the token and the n most likely
  bool trace = false;  // keep the timeline of branches

  // Which branches advance in a step: none of these changes the text.
  int row_budget = 0;  // rows of a step at most; 0: as many as the backend holds
  int group = 1;       // generations that pass the later depths together; 0: chosen by cost
  EarlyChildren early = EarlyChildren::kOff;
  AcceptancePrior prior;    // what is assumed of drafts at first
  bool adapt_rates = true;  // follow the verdicts; false for tests that need a fixed choice

  // Timing simulations only.
  const AssumedAcceptance* assume = nullptr;
  int64_t assumed_context = -1;  // committed positions for the choice of rows; -1: as they are
};

// Throws Error naming what the request asks for and this backend cannot do.
void CheckLimits(const DecodeRequest& request, const BackendLimits& limits);

// kError: decoding cannot go on; LoopSpec::error says why.
enum class FinishReason { kNone, kStop, kLength, kCancelled, kError };
std::string NameOf(FinishReason reason);

struct CommittedToken {
  int32_t token = 0;
  int32_t source = 0;  // 0: fallback, j: accepted from proposal j
  bool early = false;  // its branch had started on a guess
  float logprob = 0.0f;
  std::vector<TokenLogprob> top;
};

// Throws Error naming what is wrong with a request. What it asks for then fits the model, the
// backend and the context; whether there is room now is another question.
void CheckRequest(const DecodeRequest& request, const ModelSpec& spec,
                  const BackendOptions& backend);

}  // namespace loopspec

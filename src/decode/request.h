// What a decoder is asked to do, and what it decides.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "decode/acceptance.h"
#include "decode/ngram_index.h"
#include "decode/statistics.h"
#include "decode/trace.h"
#include "loopspec/token.h"
#include "sampling/params.h"

namespace loopspec {

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
  int max_tokens = 128;  // 0: the prompt is only read, nothing is decoded
  std::vector<int32_t> stop_tokens;  // any of them ends the text
  uint64_t seed = 0;
  uint32_t choice = 0;
  std::optional<int> logprobs = {};  // n: of the token and the n most likely
  // Recurrences of a token; 0: the model's R. Fewer are another model's text: tokens are verified
  // at this depth, which the backend must read out, and deeper planes stay empty.
  int recurrence = 0;
  bool trace = false;  // keep the timeline of branches

  // Which branches advance in a step: none of these changes the text.
  int row_budget = 0;  // rows of a step at most; 0: as many as the backend holds
  int group = 1;       // generations that pass the later depths together; 0: chosen by cost
  EarlyChildren early = EarlyChildren::kOff;
  const GuessSource* guesses = nullptr;  // for early children; null: the text itself
  // The paper's schedule: every draft gets a branch however unlikely it is, and every live branch
  // is a row of every step, whatever it costs. Goes with group 1 and no early children.
  bool every_branch = false;
  AcceptancePrior prior;    // what is assumed of drafts at first
  bool adapt_rates = true;  // follow the verdicts; false for tests that need a fixed choice
};

// The depth at which a request's tokens are decided.
inline int RecurrenceOf(const DecodeRequest& request, const ModelSpec& spec) {
  return request.recurrence > 0 ? request.recurrence : spec.recurrence;
}

// Throws Error unless tokens can be decided at that depth: it is one that the backend reads out.
void CheckRecurrence(int recurrence, const ModelSpec& spec, std::span<const int> readout_depths);

// Throws Error naming what the request asks for and this backend cannot do.
void CheckLimits(const DecodeRequest& request, const BackendLimits& limits);

struct CommittedToken {
  int32_t token = 0;
  int32_t source = 0;  // 0: fallback, j: accepted from proposal j
  bool early = false;  // its branch had started on a guess
  float logprob = 0.0f;
  std::vector<TokenLogprob> top;
};

// Throws Error naming what is wrong with a request. What it asks for then fits the model, the
// backend and the context; whether KV pages are free now is another question.
void CheckRequest(const DecodeRequest& request, const ModelSpec& spec,
                  const BackendOptions& backend);

}  // namespace loopspec

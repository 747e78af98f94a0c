// What a decoder is asked to do, and what it reports.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "sampling/params.h"

namespace loopspec {

// For timing only: verification outcomes drawn at given rates instead of decided by the model.
struct AssumedAcceptance {
  std::vector<double> rates;  // of each proposal; the rest is fallback
};

struct DecodeRequest {
  std::vector<int32_t> prompt;  // at least one token
  SamplingParams sampling;
  std::vector<int> depths;  // d1 < ... < dk; empty: autoregressive
  int max_tokens = 128;
  std::vector<int32_t> stop_tokens;  // any of them ends the text
  uint64_t seed = 0;
  uint32_t choice = 0;
  int row_budget = 0;  // live branches at most; 0: as many as the backend holds
  int logprobs = -1;   // -1: none; n: of the token and the n most likely
  bool trace = false;  // keep the timeline of branches
  const AssumedAcceptance* assume = nullptr;
};

enum class FinishReason { kNone, kStop, kLength, kCancelled };
std::string NameOf(FinishReason reason);

struct CommittedToken {
  int32_t token = 0;
  int32_t source = 0;  // 0: fallback, j: accepted from proposal j
  float logprob = 0.0f;
  std::vector<TokenLogprob> top;
};

struct DecodeStatistics {
  std::vector<int64_t> accepted;  // tokens by proposal
  int64_t fallback = 0;           // tokens decided without an accepted draft
  int64_t gate_evaluated = 0;     // later proposals considered ...
  int64_t gate_opened = 0;        // ... and let through
  int64_t steps = 0;              // batched recurrences
  int64_t row_steps = 0;          // rows summed over them
  int rows_peak = 0;
  std::vector<int64_t> rows_histogram;  // steps by number of rows
  int64_t readouts = 0;                 // rows through C
  int64_t preludes = 0;                 // rows through P
  int64_t readout_steps = 0;            // steps in which C ran
  int64_t prelude_steps = 0;            // and P
  int64_t kv_positions =
      0;  // positions read per core layer, rows of one depth sharing the committed ones

  double rows_mean() const {
    return steps > 0 ? static_cast<double>(row_steps) / static_cast<double>(steps) : 0.0;
  }
};

// One entry of the timeline, from which the paper's Figure 1 can be drawn.
struct TraceEvent {
  enum class Kind { kSpawn, kDraft, kGateClosed, kAccept, kFallback, kPrune };
  Kind kind;
  int64_t step;      // recurrences done when it happened
  int32_t branch;    // number of the branch, in order of birth
  int32_t parent;    // kSpawn: the parent's number, -1 for the first
  int32_t token;     // the branch's own (kSpawn) or the one drafted or decided
  int32_t position;  // of that token
  int32_t depth;     // of the branch
  int32_t proposal;  // kSpawn, kDraft, kAccept: which, from 1; 0: none
};
std::string NameOf(TraceEvent::Kind kind);

}  // namespace loopspec

// What is asked of a decoder and its scheduler.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/backend.h"
#include "decode/acceptance.h"
#include "decode/laboratory.h"
#include "decode/thinking.h"
#include "grammar/grammar.h"
#include "loopspec/request.h"
#include "sampling/params.h"

namespace loopspec {

// A request held against a model, with nothing left open: what the scheduler and the decoder work
// from. It is made once, does not change afterwards, and is shared by all choices of the request.
// Session::Resolve says everything; what stands here as default is the plainest decoding there is.
struct ResolvedRequest {
  std::vector<int32_t> prompt;  // ids, at least one
  SamplingParams sampling;
  std::vector<int> depths;  // d1 < ... < dk; empty: no drafts, autoregressive but for guesses
  // Recurrences of a token; 0: the model's R, which Share puts in its place. Fewer are another
  // model's text: tokens are verified at this depth, which the backend must read out, and deeper
  // planes stay empty.
  int recurrence = 0;
  int max_tokens = 0;                // 0: the prompt is only read, nothing is decoded
  std::vector<int32_t> stop_tokens;  // any of them ends the text; in order, once it is shared
  // Where the text begins in its grammar, whose ends are stop tokens; none: any text.
  std::optional<grammar::State> grammar;
  std::optional<ThinkingLimit> thinking;  // none: as long as the model likes
  // The tokens of a text, for guesses where the grammar forces what comes; null: no such guesses.
  std::function<std::vector<int32_t>(std::string_view text)> encode;
  uint64_t seed = 0;
  int choices = 1;
  std::optional<int> logprobs;         // n: of the token and the n most likely
  std::optional<int> prompt_logprobs;  // the same for the prompt's own tokens
  OnLogits on_logits;                  // of the prompt's positions; null: they are not asked for
  // Tell how far the prompt is, which is cut so that something is told about ten times a second.
  bool progress = false;
  bool trace = false;  // tell what becomes of the branches

  // How tokens become text, where the scheduler has a tokenizer.
  std::vector<std::string> stop;       // end before any of these
  std::vector<int32_t> hidden_tokens;  // never shown as text
  bool show_special = false;           // special tokens as text

  // Who asks: see engine/schedule/schedule.h.
  uint64_t tenant = 0;
  double weight = 1;  // of the tenant
  int priority = 0;

  // Which branches advance in a step: none of these changes the text.
  int max_rows = 0;       // rows of a step that it has to itself; 0: as many as the backend holds
  int group = 1;          // generations that pass the later depths together; 0: chosen by cost
  bool guesses = false;   // begin children before their draft, on what the text repeats
  AcceptancePrior prior;  // what is assumed of drafts at first
  Laboratory laboratory;
};

// A request that does not change any more, for all its choices to share.
std::shared_ptr<const ResolvedRequest> Share(ResolvedRequest request, const ModelSpec& spec);

// Throws Error unless tokens can be decided at that depth: it is one that the backend reads out.
void CheckRecurrence(int recurrence, const ModelSpec& spec, std::span<const int> readout_depths);

// Throws Error naming what the request asks for and this backend cannot do.
void CheckLimits(const ResolvedRequest& request, const BackendLimits& limits);

// Throws Error naming what is wrong with a request. What it asks for then fits the model, the
// backend and the context; whether KV pages are free now is another question.
void CheckRequest(const ResolvedRequest& request, const ModelSpec& spec,
                  const BackendOptions& backend);

}  // namespace loopspec

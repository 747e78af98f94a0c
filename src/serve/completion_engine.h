// What the service needs of an engine. The real one and the tests' fake one plug in here; nothing
// of the service knows which it is.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace loopspec::serve {

// One prompt, `n` answers to it. Everything is resolved: no defaults are left to the engine.
struct EngineRequest {
  std::string id;  // for logs
  std::vector<int32_t> prompt;
  int n = 1;
  int max_tokens = 16;
  uint64_t seed = 0;

  double temperature = 0;  // 0: greedy
  double top_p = 1, min_p = 0;
  int top_k = 0;
  double repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  std::vector<std::pair<int32_t, double>> logit_bias;
  bool coupled = false;  // the sampler

  bool speculative = true;
  std::vector<int> depths;  // empty: the engine's own choice

  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  int logprobs = -1;          // -1: none; k: of each token and the k likeliest
  bool trace = false;         // OnSteps with what becomes of the branches
  bool score_prompt = false;  // OnPrompt with a logprob for every token of the prompt but the first
};

struct TokenCandidate {
  int32_t id = -1;
  double logprob = 0;
  std::string piece = {};  // the token's own bytes, perhaps half a character; the service fills it
};

struct TokenEvent {
  int32_t id = -1;
  std::string piece;   // the token's own bytes; needed only with logprobs or for echo
  std::string text;    // what may be shown now: nothing that a stop string may take back
  int source = 0;      // 0: decided at full depth; j: accepted from proposal j
  bool early = false;  // its branch had started on a guess
  std::optional<double> logprob;
  std::vector<TokenCandidate> top;  // descending
};

// What happened to a branch of the decoder (decode/trace.h).
struct StepEvent {
  std::string kind;    // spawn, advance, draft, gate_closed, adopt, accept, fallback, prune
  int64_t step = 0;    // recurrences done when it happened; advance: before it
  int32_t branch = 0;  // in order of birth
  int32_t parent = -1;
  int32_t token = -1;      // the branch's own, or the one drafted or decided
  int32_t position = 0;    // of that token
  int32_t depth = 0;       // of the branch
  int32_t proposal = 0;    // from 1; 0: none. advance: recurrences made
  std::string piece = {};  // of the token; the service fills it
};

struct EngineStatistics {
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;      // of the prompt, taken from the prefix cache
  std::vector<int64_t> accepted;  // tokens by proposal
  int64_t fallback = 0;           // tokens decided without an accepted draft
  int64_t early = 0;
  double gamma = 0;  // tokens per R recurrences, the paper's measure
  double queue_seconds = 0, prefill_seconds = 0, decode_seconds = 0;
};

struct FinishEvent {
  std::string text;    // what was still held back
  std::string reason;  // stop, length
  // What a stop was due to, where it was not the model's own end of text.
  std::optional<std::string> stop_string;
  std::optional<int32_t> stop_token;
  EngineStatistics statistics;
};

// Receives what becomes of one EngineRequest. Calls come one at a time, from a thread of the
// engine's; they return at once and never throw. After every choice has finished, or after OnError,
// nothing follows.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void OnPrompt(
      std::vector<TokenEvent> tokens) = 0;  // only when asked for, before the rest
  virtual void OnToken(int choice, TokenEvent token) = 0;
  virtual void OnSteps(int /*choice*/, std::vector<StepEvent> /*steps*/) {}  // only when asked for
  virtual void OnFinish(int choice, FinishEvent finish) = 0;
  // Ends the request with all its choices. `busy`: for want of room, not for a fault.
  virtual void OnError(std::string message, bool busy) = 0;
};

// A request that runs. Destroying it does not end it.
class EngineTask {
 public:
  virtual ~EngineTask() = default;
  // Frees what the request holds, at any stage, within one step. Any thread; returns at once; does
  // not call the sink itself, and after a while the sink is let go without further calls.
  virtual void Cancel() = 0;
};

struct ModelFacts {
  std::string name;  // the folder's, unless the server was given another
  int64_t created = 0;
  int64_t context = 0;  // positions of prompt and answer
  int vocab = 0;
  int recurrence = 0;
  std::vector<std::vector<int>> depths;  // sets of proposal depths that requests may choose among

  // Defaults of sampling, as the model's folder states them.
  double temperature = 1, top_p = 1, min_p = 0, repetition_penalty = 1;
  int top_k = 0;

  std::optional<std::string> bos_token, eos_token, pad_token;
  std::vector<int32_t> eos_ids;
  std::optional<std::string> chat_template;
};

// A snapshot for /metrics. Totals count from the start.
struct EngineMetrics {
  int64_t running = 0, waiting = 0;
  double kv_usage = 0;     // share of the pages, 0 to 1
  double cells_usage = 0;  // of the cells, which hold branches, likewise
  int64_t preemptions = 0;
  int64_t prefix_queries = 0, prefix_hits = 0;  // tokens looked for and found in the prefix cache
  int64_t verified = 0;                         // tokens decided at full depth over drafts
  std::optional<int64_t> draft_tokens;          // where the engine counts them
  std::vector<int64_t> accepted;                // by proposal
  int64_t fallback = 0, early = 0;
  int64_t steps = 0, rows = 0;         // steps made, rows in them
  std::vector<int64_t> steps_by_rows;  // [rows]: steps that had so many; empty: not counted
};

class CompletionEngine {
 public:
  virtual ~CompletionEngine() = default;

  virtual const ModelFacts& facts() const = 0;
  // Checks the request and queues it. Throws ApiException: 400 for what can never run, 429 (Busy)
  // when the queue is full. The sink may be called before this returns, from the engine's thread.
  virtual std::unique_ptr<EngineTask> Submit(EngineRequest request,
                                             std::shared_ptr<EventSink> sink) = 0;
  virtual EngineMetrics metrics() const = 0;

  // Text. Any thread; throws Error for a template that refuses its conversation.
  virtual std::vector<int32_t> Tokenize(std::string_view text, bool add_special) const = 0;
  virtual std::string Detokenize(std::span<const int32_t> ids) const = 0;
  virtual std::string TokenPiece(int32_t id) const = 0;  // the token's own bytes
  virtual std::string RenderChat(const OrderedJson& messages,
                                 const OrderedJson& arguments) const = 0;
};

}  // namespace loopspec::serve

// Answers -> JSON, in OpenAI's and SGLang's forms. Pure functions. Whatever bytes come in, what
// goes out is valid UTF-8.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "loopspec/engine.h"
#include "serve/openai/error.h"
#include "serve/openai/types.h"

namespace loopspec::serve {

// What every body and stream event of one response begins with.
struct ResponseHead {
  Endpoint endpoint = kCompletions;
  std::string id;
  std::string model;
  int64_t created = 0;  // seconds since 1970
};

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
};

// `loopspec` of a response, over all its choices.
struct RunSummary {
  std::vector<int64_t> accepted;  // tokens by proposal
  int64_t fallback = 0, early = 0;
  double gamma = 0;            // the paper's formula, from accepted drafts alone
  double tokens_per_pass = 0;  // for every R recurrences that were made
  double tokens_per_second = 0;
  int64_t cached_tokens = 0;
  uint64_t seed = 0;
};

// A call of a tool, or a piece of one.
struct CallPart {
  int index = 0;   // among the answer's
  std::string id;  // with the piece that begins it, as its name
  std::string name;
  std::string arguments;
};

// A choice, or the part of one that a stream event carries.
struct ChoicePart {
  int index = 0;
  std::string text;       // new text: content, after the reasoning
  std::string reasoning;  // only where it was asked for apart
  std::vector<CallPart> calls;
  bool called = false;            // there was a call, in this part or before
  bool call_cut = false;          // the last of them, by the end of the answer
  std::vector<Token> tokens;      // for log-probabilities and details
  std::vector<TraceEvent> steps;  // of the branches, where asked for
  size_t text_offset = 0;         // characters of the choice before `tokens`
  bool first = false;             // of a stream: names the role
  bool split_reasoning = false;   // reasoning_content is there even when empty
  std::optional<Statistics> finish;
  // /generate streams the whole text so far and the numbers so far with each event.
  std::string whole_text;
  std::vector<int32_t> ids;
  std::vector<Token> all_tokens;
};

// A token's own bytes, perhaps half a character.
using TokenPieces = std::function<std::string_view(int32_t id)>;

struct WriteOptions {
  TokenPieces pieces;           // needed for log-probabilities and steps
  std::optional<int> logprobs;  // k: of each token and of the k likeliest
  bool token_details = false;
  bool trace = false;
  bool usage_in_stream = false;       // an event with the counts after the last choice's end
  bool usage_in_every_event = false;  // and the counts so far in every other
  // Only what the request decides: no times, and no counts of what the cache and the schedule did.
  bool reproducible = false;
};

OrderedJson UsageJson(const Usage& usage, bool reproducible = false);
OrderedJson SummaryJson(const RunSummary& summary, bool reproducible = false);
OrderedJson ErrorJson(const ApiError& error);

OrderedJson CompletionBody(const ResponseHead& head, std::span<const ChoicePart* const> choices,
                           const Usage& usage, const RunSummary& summary,
                           const WriteOptions& options);
// One event of a stream; `summary` only with the last choice's end.
// `usage`: the counts so far, where every event has them.
OrderedJson CompletionEvent(const ResponseHead& head, const ChoicePart& part,
                            const RunSummary* summary, const WriteOptions& options,
                            const Usage* usage = nullptr);
// The event after the last choice's end, when the counts were asked for.
OrderedJson UsageEvent(const ResponseHead& head, const Usage& usage);

// SGLang's form of one choice, the same for a body and for a stream event.
OrderedJson GenerateJson(const ResponseHead& head, const ChoicePart& choice, const Usage& usage,
                         const RunSummary* summary, double seconds, const WriteOptions& options);

// `served`: what holds for a request that says nothing of sampling.
OrderedJson ModelJson(const ModelFacts& facts, const SamplingParams& served,
                      const std::string& name, int64_t created);
OrderedJson TokenizerInfoJson(const ModelFacts& facts);

// What routers ask of a replica, in SGLang's words; `name` is the model's.
OrderedJson ModelInfoJson(const ModelFacts& facts, const std::string& name);
OrderedJson ServerInfoJson(const ModelFacts& facts, const std::string& name,
                           const std::string& version);
// `now`: seconds since 1970.
OrderedJson LoadsJson(const EngineMetrics& metrics, const std::string& version, double now);

// JSON as text: bytes that are no valid UTF-8 become U+FFFD.
std::string Dump(const OrderedJson& json);
// "data: ...\n\n"
std::string ServerSentEvent(const OrderedJson& json);
inline constexpr std::string_view kStreamDone = "data: [DONE]\n\n";
inline constexpr std::string_view kStreamKeepAlive = ": keep-alive\n\n";

// Characters in pieces of UTF-8 that may end within one.
size_t CountStarts(std::string_view piece);

}  // namespace loopspec::serve

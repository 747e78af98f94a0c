// Requests as the wire formats state them: plain values, checked for form and range, not yet held
// against a model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace loopspec::serve {

// The forms of a request for text. Values are bits of a set.
enum Endpoint : unsigned {
  kCompletions = 1,  // /v1/completions
  kChat = 2,         // /v1/chat/completions
  kGenerate = 4,     // /generate, SGLang's form
  kTokenize = 8,     // /tokenize
  kDetokenize = 16,  // /detokenize
};

struct WireLimits {
  int max_n = 16;             // choices per prompt
  int max_choices = 128;      // prompts times n
  int max_logprobs = 20;      // likeliest tokens at a position
  int max_stops = 16;         // stop strings
  int max_stop_bytes = 1024;  // of one of them
  int max_bias = 1024;        // entries of logit_bias
  int max_scores =
      2'000'000;        // log-probabilities of echoed prompts, the likeliest tokens' included
  bool strict = false;  // fields that nobody knows are refused, not ignored
};

// Names of fields that nobody knows, as far as they are worth telling.
class IgnoredFields {
 public:
  void Add(const std::string& path);
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;  // what a header can carry, few and short, each once
};

struct PromptInput {
  std::optional<std::string> text;
  std::vector<int32_t> ids;  // when there is no text
};

enum class ReasoningFormat {
  kNone,              // <think> ... </think> stays in the content
  kReasoningContent,  // it becomes reasoning_content, without the tags
};

// What is absent is for the model's own defaults.
struct SamplingFields {
  std::optional<double> temperature, top_p, min_p;
  std::optional<double> repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int> top_k;  // 0: off
  std::vector<std::pair<int32_t, double>> logit_bias;
  std::optional<std::string> sampler;  // cascade, coupled
};

struct CompletionRequest {
  Endpoint endpoint = kCompletions;

  std::vector<PromptInput> prompts;  // completions and generate: at least one
  bool batch = false;                // they came as a list
  OrderedJson messages;              // chat: a list of {role, content, ...} for the template
  OrderedJson template_arguments = OrderedJson::object();

  SamplingFields sampling;
  int n = 1;
  std::optional<uint64_t> seed;
  std::optional<int> max_tokens;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  int priority = 0;  // among the requests of one share, the lower first

  std::optional<int> logprobs;      // k: of each token and of the k likeliest
  std::optional<int> top_logprobs;  // chat and generate: that k, in a field of its own
  bool echo = false;  // the prompt comes back before the answer, with its logprobs if asked
  bool stream = false;
  bool include_usage = false;         // a last stream event with the counts
  bool usage_in_every_event = false;  // and the counts so far in every other
  bool token_details = false;         // where each token came from, for the page
  bool trace = false;                 // what becomes of the branches, for the page
  ReasoningFormat reasoning = ReasoningFormat::kNone;

  std::optional<std::string> decode;       // loopspec, ar
  std::optional<std::vector<int>> depths;  // proposal depths
  std::optional<int> recurrence;           // at which tokens are decided
  std::string id;                          // generate: the caller's own name for the request
  IgnoredFields ignored;
};

struct TokenizeRequest {
  std::optional<std::string> prompt;
  OrderedJson messages;  // when there is no prompt
  OrderedJson template_arguments = OrderedJson::object();
  std::optional<bool> add_special_tokens;
  bool return_token_strings = false;
  IgnoredFields ignored;
};

struct DetokenizeRequest {
  std::vector<int32_t> tokens;
  IgnoredFields ignored;
};

}  // namespace loopspec::serve

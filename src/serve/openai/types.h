// Requests as the wire formats state them: plain values, checked for form and range, not yet held
// against a model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "fields/sampling_fields.h"
#include "loopspec/request.h"

namespace loopspec::serve {

// The forms of a request for text. Values are bits of a set.
enum Endpoint : unsigned {
  kCompletions = 1,   // /v1/completions
  kChat = 2,          // /v1/chat/completions
  kGenerate = 4,      // /generate, SGLang's form
  kTokenize = 8,      // /tokenize
  kDetokenize = 16,   // /detokenize
  kMessages = 32,     // /v1/messages, Anthropic's form of a chat
  kCountTokens = 64,  // /v1/messages/count_tokens
  kResponses = 128,   // /v1/responses, OpenAI's newer form of a chat
};
// Sets of them that fields have in common.
inline constexpr unsigned kOpenAiEndpoints = kCompletions | kChat;
inline constexpr unsigned kTextEndpoints = kOpenAiEndpoints | kGenerate;

struct WireLimits {
  int max_n = 16;             // choices per prompt
  int max_choices = 128;      // prompts times n
  int max_logprobs = 20;      // likeliest tokens at a position
  int max_stops = 16;         // stop strings
  int max_stop_bytes = 1024;  // of one of them
  int max_bias = 1024;        // entries of logit_bias
  int max_scores =
      2'000'000;        // log-probabilities of echoed prompts, the likeliest tokens' included
  bool strict = false;  // unknown fields are refused, not ignored
};

// Names of unknown fields, as far as they are worth telling.
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
  kReasoningContent,  // it becomes reasoning_content and reasoning, without the tags
};

enum class ToolChoice {
  kNone,      // no tool may be called
  kAuto,      // the model decides
  kRequired,  // at least one is called
  kNamed,     // this one is called
};

// The tools that an answer may call, in the words of OpenAI's chat, whatever API named them.
struct ToolUse {
  OrderedJson tools = OrderedJson::array();  // {"type": "function", "function": {"name", ...}}
  ToolChoice choice = ToolChoice::kAuto;
  std::string named;  // with kNamed
  // Names of those that may be called, while the prompt has all; empty: any.
  std::vector<std::string> allowed = {};
  bool parallel = true;  // more than one call in an answer
};

// A request for text. What the engine will be asked for stands in the engine's own types; the rest
// is what only the wire formats know.
struct CompletionRequest {
  Endpoint endpoint = kCompletions;

  Request asked;              // all but the prompt and the sampling
  SaidSampling sampling;      // the rest is the model's own defaults
  std::string grammar_field;  // that asked for a grammar; empty: none did
  std::string schema_at;      // where in the body its schema is, in the order of its properties
  bool likeliest = false;     // top_p 0, which is OpenAI's for greedy

  std::vector<PromptInput> prompts;         // completions and generate: at least one
  bool batch = false;                       // they came as a list
  OrderedJson messages;                     // chat: a list of {role, content, ...} for the template
  std::string messages_field = "messages";  // of the body, which refusals name
  OrderedJson template_arguments = OrderedJson::object();
  ToolUse tools;                 // chat
  std::string reasoning_effort;  // chat: how much the template is asked to let the model think
  // max_tokens beyond what the context holds, or beyond the server's limit, is cut to it. For APIs
  // whose clients ask for tens of thousands; else it is refused.
  bool clamp_max_tokens = false;

  std::optional<int> top_logprobs;  // chat and generate: asked.logprobs in a field of its own
  bool echo = false;  // the prompt comes back before the answer, with its logprobs if asked
  bool stream = false;
  bool include_usage = false;         // a last stream event with the counts
  bool usage_in_every_event = false;  // and the counts so far in every other
  bool token_details = false;         // where each token came from, for the page
  ReasoningFormat reasoning = ReasoningFormat::kNone;
  std::string id;  // generate: the caller's own name for the request
  IgnoredFields ignored;
};

struct TokenizeRequest {
  std::optional<std::string> prompt;
  OrderedJson messages;  // when there is no prompt
  OrderedJson template_arguments = OrderedJson::object();
  ToolUse tools;
  std::optional<bool> add_special_tokens;
  bool return_token_strings = false;
  IgnoredFields ignored;
};

struct DetokenizeRequest {
  std::vector<int32_t> tokens;
  IgnoredFields ignored;
};

}  // namespace loopspec::serve

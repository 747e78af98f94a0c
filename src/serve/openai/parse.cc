#include "serve/openai/parse.h"

#include <algorithm>

#include "base/error.h"
#include "serve/openai/grammar_fields.h"
#include "serve/openai/tool_fields.h"
#include "serve/openai/values.h"

namespace loopspec::serve {
namespace {

template <typename Value>
Value ParseObject(std::string_view body,
                  Value (*parse)(std::string_view text, std::string_view what)) {
  Value json;
  try {
    json = parse(body, "The body");
  } catch (const Error& error) {
    // The library quotes what it read last, which may be a prompt.
    std::string message = error.what();
    if (const size_t quote = message.find("; last read: "); quote != message.npos) {
      message = message.substr(0, quote) + ")";
    }
    Refuse("", "{}.", message);
  }
  if (!json.is_object()) Refuse("", "The body is {}, expected a JSON object.", Shown(json));
  return json;
}

// Null counts as absent. A field of another endpoint is not taken for an unknown one, which may be
// ignored: it asks for something that does not happen here.
template <typename Request>
void ReadFields(const Json& body, unsigned endpoint, const std::vector<Field<Request>>& fields,
                const WireLimits& limits, Request& request) {
  for (const auto& item : body.items()) {
    const std::string& key = item.key();
    const auto named = [&](const Field<Request>& known) { return known.name == key; };
    const auto field = std::find_if(fields.begin(), fields.end(), [&](const Field<Request>& known) {
      return (known.endpoints & endpoint) != 0 && named(known);
    });
    if (field != fields.end()) {
      if (!item.value().is_null()) field->read(item.value(), key, request);
    } else if (std::any_of(fields.begin(), fields.end(), named)) {
      if (!item.value().is_null()) Refuse(key, "{} is not a field of this route.", key);
    } else {
      Unknown(key, limits, request.ignored);
    }
  }
}

bool Given(const Json& body, const char* name) {
  const auto it = body.find(name);
  return it != body.end() && !it->is_null();
}

// What depends on more than one field.
void CheckTogether(const Json& body, const WireLimits& limits, CompletionRequest& request) {
  if (request.endpoint == kChat) {
    if (request.messages.is_null()) Refuse("messages", "messages is missing.");
  } else if (request.prompts.empty()) {
    const char* name = request.endpoint == kGenerate ? "text" : "prompt";
    Refuse(name, "{} is missing.", name);
  }
  const auto choices =
      static_cast<int64_t>(std::max<size_t>(request.prompts.size(), 1)) * request.asked.choices;
  if (choices > limits.max_choices) {
    Refuse("n", "The request asks for {} answers ({} prompts, n = {}), expected at most {}.",
           choices, std::max<size_t>(request.prompts.size(), 1), request.asked.choices,
           limits.max_choices);
  }
  if (Given(body, "best_of") && body["best_of"].get<double>() > request.asked.choices) {
    Refuse("best_of", "best_of is {}, more than n = {}; this server gives every answer it makes.",
           Shown(body["best_of"]), request.asked.choices);
  }
  if (Given(body, "stream_options") && !request.stream) {
    Refuse("stream_options", "stream_options goes with stream: true.");
  }
  if (request.endpoint == kChat && request.top_logprobs && !request.asked.logprobs) {
    Refuse("top_logprobs", "top_logprobs goes with logprobs: true.");
  }
  if (request.asked.logprobs && request.top_logprobs) request.asked.logprobs = request.top_logprobs;
  if (Given(body, "max_tokens") && Given(body, "max_completion_tokens") &&
      body["max_tokens"] != body["max_completion_tokens"]) {
    Refuse("max_tokens", "max_tokens and max_completion_tokens differ.");
  }
  if (request.tools.tools.empty() && request.tools.choice != ToolChoice::kNone &&
      request.tools.choice != ToolChoice::kAuto) {
    Refuse("tool_choice", "tool_choice asks for a call, and there are no tools.");
  }
  if (request.asked.max_tokens == 0 && !request.echo) {
    Refuse("max_tokens", "max_tokens is 0, which only echo has a use for.");
  }
}

}  // namespace

OrderedJson ParseOrderedBody(std::string_view body) {
  return ParseObject(body, ParseOrderedJson);
}

WireParser::WireParser(const WireLimits& limits)
    : limits_(limits),
      fields_(CompletionFields(limits)),
      tokenize_fields_(TokenizeFields(limits)) {}

CompletionRequest WireParser::Completion(Endpoint endpoint, std::string_view body) const {
  const Json json = ParseObject(body, ParseJson);
  CompletionRequest request;
  request.endpoint = endpoint;
  ReadFields(json, endpoint, fields_, limits_, request);
  CheckTogether(json, limits_, request);
  TakeSchema(body, request);
  if (!request.tools.tools.empty()) request.tools.tools = OrderedTools(body);
  return request;
}

TokenizeRequest WireParser::Tokenize(std::string_view body) const {
  const Json json = ParseObject(body, ParseJson);
  TokenizeRequest request;
  ReadFields(json, kTokenize, tokenize_fields_, limits_, request);
  if (request.prompt.has_value() == !request.messages.is_null()) {
    Refuse("prompt", "Expected either prompt or messages.");
  }
  if (!request.tools.tools.empty()) {
    request.tools.tools = OrderedTools(body);
    ToolsToCall(request.tools);  // checks them
    request.template_arguments["tools"] = request.tools.tools;
  }
  return request;
}

DetokenizeRequest WireParser::Detokenize(std::string_view body) const {
  const Json json = ParseObject(body, ParseJson);
  DetokenizeRequest request;
  for (const auto& item : json.items()) {
    if (item.key() != "tokens" && item.key() != "model") {
      Unknown(item.key(), limits_, request.ignored);
    }
  }
  if (!Given(json, "tokens")) Refuse("tokens", "tokens is missing.");
  request.tokens = ReadTokenIds(json["tokens"], "tokens");
  return request;
}

}  // namespace loopspec::serve

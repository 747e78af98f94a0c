#include "serve/openai/fields.h"

#include <algorithm>
#include <limits>

#include "fields/choices.h"
#include "fields/request_fields.h"
#include "fields/sampling_fields.h"
#include "serve/openai/error.h"
#include "serve/openai/grammar_fields.h"
#include "serve/openai/known_fields.h"
#include "serve/openai/members.h"
#include "serve/openai/tool_fields.h"
#include "serve/openai/values.h"

namespace loopspec::serve {
namespace {

constexpr int kMaxInt = std::numeric_limits<int32_t>::max();

// Each of these makes a field whose schema and reader say the same.

template <typename Request, typename Set>
Field<Request> Bool(std::string name, unsigned endpoints, Set set, std::string description) {
  return {std::move(name), endpoints, std::move(description), OrderedJson{{"type", "boolean"}},
          [set](const Json& value, const std::string& path, Request& request) {
            set(request, ReadBool(value, path));
          }};
}

template <typename Set>
CompletionField Int(std::string name, unsigned endpoints, int low, int high, Set set,
                    std::string description) {
  return {std::move(name), endpoints, std::move(description),
          OrderedJson{{"type", "integer"}, {"minimum", low}, {"maximum", high}},
          [=](const Json& value, const std::string& path, CompletionRequest& request) {
            set(request, static_cast<int>(ReadInt(value, path, low, high)));
          }};
}

template <typename Set>
CompletionField Number(std::string name, unsigned endpoints, Range range, Set set,
                       std::string description) {
  OrderedJson schema = {{"type", "number"},
                        {range.above ? "exclusiveMinimum" : "minimum", range.low},
                        {"maximum", range.high}};
  return {std::move(name), endpoints, std::move(description), std::move(schema),
          [=](const Json& value, const std::string& path, CompletionRequest& request) {
            set(request, ReadNumber(value, path, range));
          }};
}

template <typename Set>
CompletionField Choice(std::string name, unsigned endpoints, std::vector<std::string> choices,
                       Set set, std::string description) {
  OrderedJson schema = {{"type", "string"}, {"enum", choices}};
  return {std::move(name), endpoints, std::move(description), std::move(schema),
          [=](const Json& value, const std::string& path, CompletionRequest& request) {
            set(request, ReadChoice(value, path, choices));
          }};
}

// A field that others know.
template <typename Request>
Field<Request> Known(const KnownField& field, unsigned endpoints) {
  const bool any = field.any();
  OrderedJson schema = OrderedJson::object();
  if (!any) {
    const OrderedJson values(field.values());
    schema = values.empty() ? OrderedJson{{"not", OrderedJson::object()}}
                            : OrderedJson{{"enum", values}};
  }
  return {field.name, endpoints,
          any ? "Accepted and not used." : "Not supported, but for values that ask for nothing.",
          std::move(schema), [&field](const Json& value, const std::string& path, Request&) {
            CheckAsksForNothing(field, value, path);
          }};
}

// The fields of others that `fields` has not got itself. `place`: theirs in the table; `endpoint`:
// what they are listed under here.
template <typename Request>
void AddKnown(unsigned place, unsigned endpoint, std::vector<Field<Request>>& fields) {
  for (const KnownField& field : KnownFields()) {
    if ((field.where & place) == 0) continue;
    const bool own = std::any_of(fields.begin(), fields.end(), [&](const Field<Request>& known) {
      return (known.endpoints & endpoint) != 0 && known.name == field.name;
    });
    if (!own) fields.push_back(Known<Request>(field, endpoint));
  }
}

OrderedJson TokenIdsSchema() {
  return {{"type", "array"},
          {"minItems", 1},
          {"items", {{"type", "integer"}, {"minimum", 0}, {"maximum", kMaxInt}}}};
}

OrderedJson PromptSchema() {
  return {{"anyOf",
           {{{"type", "string"}},
            {{"type", "array"}, {"minItems", 1}, {"items", {{"type", "string"}}}},
            TokenIdsSchema(),
            {{"type", "array"}, {"minItems", 1}, {"items", TokenIdsSchema()}}}}};
}

OrderedJson MessagesSchema() {
  const OrderedJson part = {
      {"type", "object"},
      {"properties",
       {{"type", {{"type", "string"}, {"enum", {"text"}}}}, {"text", {{"type", "string"}}}}},
      {"required", {"type", "text"}}};
  const OrderedJson content = {
      {"anyOf", {{{"type", "string"}}, {{"type", "array"}, {"items", part}}}}};
  const OrderedJson call = {
      {"type", "object"},
      {"properties",
       {{"id", {{"type", "string"}}},
        {"type", {{"type", "string"}, {"enum", {"function"}}}},
        {"function",
         {{"type", "object"},
          {"properties", {{"name", {{"type", "string"}}}, {"arguments", {{"type", "string"}}}}},
          {"required", {"name", "arguments"}}}}}},
      {"required", {"function"}}};
  return {
      {"type", "array"},
      {"minItems", 1},
      {"items",
       {{"type", "object"},
        {"properties",
         {{"role",
           {{"type", "string"}, {"enum", {"system", "developer", "user", "assistant", "tool"}}}},
          {"content", content},
          {"name", {{"type", "string"}}},
          {"reasoning_content", {{"type", "string"}}},
          {"reasoning", {{"type", "string"}}},
          {"tool_calls", {{"type", "array"}, {"items", call}}},
          {"tool_call_id", {{"type", "string"}}}}},
        {"required", {"role", "content"}}}}};
}

OrderedJson StopSchema(const WireLimits& limits) {
  const OrderedJson one = {
      {"type", "string"}, {"minLength", 1}, {"maxLength", limits.max_stop_bytes / 4}};
  return {{"anyOf", {one, {{"type", "array"}, {"maxItems", limits.max_stops}, {"items", one}}}}};
}

CompletionField Messages(unsigned endpoints, const WireLimits& limits) {
  return {"messages", endpoints,
          "The conversation. Contents are text, or lists of parts of type text.", MessagesSchema(),
          [limits](const Json& value, const std::string& path, CompletionRequest& request) {
            request.messages = ReadMessages(value, path, limits, request.ignored);
          }};
}

CompletionField Stop(unsigned endpoints, const WireLimits& limits) {
  return {"stop", endpoints, "The text ends before the first of these strings.", StopSchema(limits),
          [limits](const Json& value, const std::string& path, CompletionRequest& request) {
            request.asked.stop = ReadStops(value, path, limits);
          }};
}

CompletionField StopTokenIds(unsigned endpoints) {
  OrderedJson schema = TokenIdsSchema();
  schema.erase("minItems");
  return {"stop_token_ids", endpoints,
          "The text ends before the first of these tokens, which counts as one of the answer.",
          std::move(schema),
          [](const Json& value, const std::string& path, CompletionRequest& request) {
            // Each once: one may be named a million times, and every prompt has a copy.
            std::vector<int32_t>& ids = request.asked.stop_tokens = ReadTokenIds(value, path);
            std::sort(ids.begin(), ids.end());
            ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
          }};
}

CompletionField Prompts(std::string name, unsigned endpoints, const WireLimits& limits,
                        std::string description) {
  return {std::move(name), endpoints, std::move(description), PromptSchema(),
          [limits](const Json& value, const std::string& path, CompletionRequest& request) {
            if (!request.prompts.empty()) Refuse(path, "{} is a second prompt.", path);
            request.prompts = ReadPrompts(value, path, limits, request.batch);
          }};
}

// OpenAI's ranges where they are not the engine's: penalties are -2 to 2, and a top_p of 0 is the
// likeliest token alone.
Range WireRange(const SamplingField& field) {
  const std::string_view name = field.name;
  if (name == "presence_penalty" || name == "frequency_penalty") return {-2, 2};
  if (name == "top_p") return {0, 1};
  return field.range;
}

// A number of the engine's table.
CompletionField Sampling(const SamplingField& field, unsigned endpoints) {
  const Range range = WireRange(field);
  const bool top_p = field.name == std::string_view("top_p");
  const auto set = [&field, top_p](CompletionRequest& request, double value) {
    if (top_p) request.likeliest = value == 0;
    if (!top_p || value != 0) request.sampling.Set(field, value);
  };
  if (field.whole()) {
    return Int(field.name, endpoints, static_cast<int>(range.low), static_cast<int>(range.high),
               set, std::string(field.help) + ".");
  }
  return Number(field.name, endpoints, range, set, std::string(field.help) + ".");
}

// A number or a switch of the engine's table under a name of the wire's. `most`: the server's own
// upper limit.
CompletionField Plain(const char* name, unsigned endpoints, const RequestField& field,
                      int most = kMaxInt) {
  std::string help = std::string(field.help) + ".";
  const auto set = [&field](CompletionRequest& request, int value) {
    field.Set(request.asked, value);
  };
  if (field.is_switch()) return Bool<CompletionRequest>(name, endpoints, set, std::move(help));
  const double high = std::min<double>(field.range.high, most);
  return Int(name, endpoints, static_cast<int>(field.range.low), static_cast<int>(high), set,
             std::move(help));
}
CompletionField Plain(const char* name, unsigned endpoints, int most = kMaxInt) {
  return Plain(name, endpoints, RequestFieldNamed(name), most);
}

// How tokens are chosen: the same names and ranges in both forms.
void AddSampling(unsigned e, const WireLimits& limits, std::vector<CompletionField>& fields) {
  using R = CompletionRequest;
  for (const SamplingField& field : SamplingFields()) fields.push_back(Sampling(field, e));
  fields.push_back(Choice(
      "sampler", e, NamesOf(kSamplers),
      [](R& r, const std::string& v) { r.sampling.SetSampler(ValueOf(kSamplers, v)); },
      std::string(kSamplerHelp) + "."));
  fields.push_back(Plain("n", e, limits.max_n));
  fields.push_back({"seed", e, "The same seed gives the same text. Drawn when absent.",
                    OrderedJson{{"type", "integer"}, {"format", "int64"}},
                    [](const Json& value, const std::string& path, R& request) {
                      request.asked.seed = ReadSeed(value, path);
                    }});
  fields.push_back(
      {"logit_bias", e, "Token ids and what is added to their logits, -100 to 100.",
       OrderedJson{{"type", "object"},
                   {"maxProperties", limits.max_bias},
                   {"patternProperties",
                    {{"^[0-9]{1,9}$", {{"type", "number"}, {"minimum", -100}, {"maximum", 100}}}}},
                   {"additionalProperties", false}},
       [limits](const Json& value, const std::string& path, R& request) {
         request.sampling.SetBias(ReadBias(value, path, limits));
       }});
  fields.push_back(Stop(e, limits));
  fields.push_back(StopTokenIds(e));
  fields.push_back(Plain("ignore_eos", e));
}

// What this engine adds to the standard.
void AddExtensions(std::vector<CompletionField>& fields) {
  using R = CompletionRequest;
  fields.push_back(Choice(
      "decode", kTextEndpoints, NamesOf(kDecodings),
      [](R& r, const std::string& v) { r.asked.decoding = ValueOf(kDecodings, v); },
      std::string(kDecodingHelp) + "."));
  fields.push_back({"depths", kTextEndpoints,
                    "Proposal depths, among those that the server was started with.",
                    OrderedJson{{"anyOf",
                                 {{{"type", "string"}, {"enum", {"auto"}}},
                                  {{"type", "array"},
                                   {"minItems", 1},
                                   {"maxItems", 16},
                                   {"items", {{"type", "integer"}, {"minimum", 1}}}}}}},
                    [](const Json& value, const std::string& path, R& request) {
                      request.asked.depths = ReadDepths(value, path);
                    }});
  fields.push_back(Int(
      "priority", kTextEndpoints, -1000, 1000, [](R& r, int v) { r.asked.priority = v; },
      std::string(RequestFieldNamed("priority").help) + "."));
  fields.push_back(Plain("recurrence", kTextEndpoints));
  fields.push_back(Bool<R>(
      "token_details", kTextEndpoints, [](R& r, bool v) { r.token_details = v; },
      "Lists each token with the proposal that it came from."));
  fields.push_back(Plain("trace", kTextEndpoints));
}

void AddChat(const WireLimits& limits, std::vector<CompletionField>& fields) {
  using R = CompletionRequest;
  fields.push_back(Messages(kChat, limits));
  fields.push_back({"chat_template_kwargs", kChat, "Variables for the model's chat template.",
                    OrderedJson{{"type", "object"}},
                    [](const Json& value, const std::string& path, R& request) {
                      request.template_arguments.update(ReadTemplateArguments(value, path));
                    }});
  fields.push_back(Bool<R>(
      "enable_thinking", kChat, [](R& r, bool v) { r.template_arguments["enable_thinking"] = v; },
      "Short for the chat template's variable of that name."));
  fields.push_back(Choice(
      "reasoning_format", kChat, {"none", "deepseek"},
      [](R& r, const std::string& v) {
        r.reasoning = v == "none" ? ReasoningFormat::kNone : ReasoningFormat::kReasoningContent;
      },
      "deepseek: what stands between <think> and </think> comes as "
      "reasoning_content and reasoning."));
  fields.push_back(Choice(
      "reasoning_effort", kChat, {"none", "minimal", "low", "medium", "high", "xhigh"},
      [](R& r, const std::string& v) { r.reasoning_effort = v; },
      "none and minimal: the chat template's enable_thinking is false; a template that knows "
      "reasoning_effort is told."));
  AddToolFields(fields);
}

void AskForLogprobs(CompletionRequest& request, bool asked) {
  if (asked) request.asked.logprobs = 0;
}

void AddOutput(const WireLimits& limits, std::vector<CompletionField>& fields) {
  using R = CompletionRequest;
  fields.push_back(Plain("max_tokens", kOpenAiEndpoints));
  const RequestField& thinking = RequestFieldNamed("max_thinking_tokens");
  fields.push_back(Plain("max_thinking_tokens", kTextEndpoints, thinking));
  fields.push_back(Plain("thinking_token_budget", kOpenAiEndpoints, thinking));  // vLLM's name
  fields.push_back(Plain("max_completion_tokens", kChat, RequestFieldNamed("max_tokens")));
  fields.push_back(Bool<R>(
      "stream", kTextEndpoints, [](R& r, bool v) { r.stream = v; },
      "The answer comes as server-sent events."));
  fields.push_back({"stream_options", kOpenAiEndpoints, "Only with stream.",
                    OrderedJson{{"type", "object"},
                                {"properties",
                                 {{"include_usage", {{"type", "boolean"}}},
                                  {"continuous_usage_stats", {{"type", "boolean"}}},
                                  {"include_obfuscation", OrderedJson::object()}}},
                                {"additionalProperties", !limits.strict}},
                    [limits](const Json& value, const std::string& path, R& request) {
                      CheckIsObject(value, path);
                      for (const auto& [key, entry] : value.items()) {
                        const std::string where = path + "." + key;
                        if (entry.is_null()) continue;
                        if (key == "include_usage") {
                          request.include_usage = ReadBool(entry, where);
                        } else if (key == "continuous_usage_stats") {
                          request.usage_in_every_event = ReadBool(entry, where);
                        } else if (const KnownField* known = FindKnownField(key, kStreamOptions)) {
                          CheckAsksForNothing(*known, entry, where);
                        } else {
                          Unknown(where, limits, request.ignored);
                        }
                      }
                    }});
  fields.push_back(Plain("logprobs", kCompletions, limits.max_logprobs));
  fields.push_back(Bool<R>(
      "echo", kCompletions, [](R& r, bool v) { r.echo = v; },
      "The prompt comes back before the answer."));
  fields.push_back(Int(
      "best_of", kCompletions, 1, limits.max_n, [](R&, int) {},
      "Supported only up to n, where it asks for nothing."));
  // `logprobs` of a chat says whether, top_logprobs how many.
  fields.push_back(Bool<R>("logprobs", kChat, AskForLogprobs, "Log-probabilities of each token."));
  fields.push_back(Int(
      "top_logprobs", kChat, 0, limits.max_logprobs, [](R& r, int v) { r.top_logprobs = v; },
      "How many of the likeliest tokens; only with logprobs."));
}

}  // namespace

void IgnoredFields::Add(const std::string& path) {
  constexpr size_t kMostNames = 16, kLongestName = 64;
  if (names_.size() >= kMostNames) return;
  std::string name = path.substr(0, kLongestName);
  for (char& c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= ' ' || byte > '~' || c == ',') c = '?';
  }
  if (std::find(names_.begin(), names_.end(), name) == names_.end()) names_.push_back(name);
}

void Unknown(const std::string& path, const WireLimits& limits, IgnoredFields& ignored) {
  if (!limits.strict) return ignored.Add(path);
  const std::string name = path.size() > 60 ? path.substr(0, 40) + "..." : path;
  Refuse(name, "{} is not a field that this server knows.", name);
}

std::vector<CompletionField> CompletionFields(const WireLimits& limits) {
  using R = CompletionRequest;
  std::vector<CompletionField> fields;
  fields.push_back(Prompts("prompt", kCompletions, limits,
                           "Text, token ids, or a list of either for several prompts at once."));
  AddChat(limits, fields);
  AddSampling(kOpenAiEndpoints, limits, fields);
  AddOutput(limits, fields);
  AddGrammarFields(kOpenAiEndpoints, fields);
  AddExtensions(fields);

  // SGLang's form.
  fields.push_back(Prompts("text", kGenerate, limits, "A prompt or a list of prompts."));
  fields.push_back(Prompts("input_ids", kGenerate, limits, "The same as token ids."));
  fields.push_back({"rid", kGenerate, "A name for the request.", OrderedJson{{"type", "string"}},
                    [](const Json& value, const std::string& path, R& request) {
                      request.id = ReadString(value, path);
                    }});
  fields.push_back(Bool<R>("return_logprob", kGenerate, AskForLogprobs,
                           "Log-probabilities of the answer's tokens."));
  fields.push_back(Int(
      "top_logprobs_num", kGenerate, 0, limits.max_logprobs,
      [](R& r, int v) { r.top_logprobs = v; }, "How many of the likeliest tokens."));
  const auto inner = SamplingParamsFields(limits);
  fields.push_back({"sampling_params", kGenerate, "How tokens are chosen.",
                    BodySchema(inner, kGenerate, {}, limits.strict),
                    [inner, limits](const Json& value, const std::string& path, R& request) {
                      CheckIsObject(value, path);
                      for (const auto& [key, entry] : value.items()) {
                        const std::string where = path + "." + key;
                        const auto field =
                            std::find_if(inner.begin(), inner.end(),
                                         [&name = key](const CompletionField& known) {
                                           return known.name == name;
                                         });
                        if (field == inner.end()) {
                          Unknown(where, limits, request.ignored);
                        } else if (!entry.is_null()) {
                          field->read(entry, where, request);
                        }
                      }
                    }});
  for (const unsigned endpoint : {kCompletions, kChat, kGenerate}) {
    AddKnown(endpoint, endpoint, fields);
  }
  return fields;
}

std::vector<CompletionField> SamplingParamsFields(const WireLimits& limits) {
  std::vector<CompletionField> fields;
  AddSampling(kGenerate, limits, fields);
  fields.push_back(Plain("max_new_tokens", kGenerate, RequestFieldNamed("max_tokens")));
  AddGrammarParams(kGenerate, fields);
  AddKnown(kSamplingParams, kGenerate, fields);
  return fields;
}

std::vector<Field<TokenizeRequest>> TokenizeFields(const WireLimits& limits) {
  using R = TokenizeRequest;
  std::vector<Field<R>> fields;
  fields.push_back({"prompt", kTokenize, "Text to cut into tokens.",
                    OrderedJson{{"type", "string"}},
                    [](const Json& value, const std::string& path, R& request) {
                      request.prompt = ReadString(value, path);
                    }});
  fields.push_back({"messages", kTokenize, "A conversation instead of text.", MessagesSchema(),
                    [limits](const Json& value, const std::string& path, R& request) {
                      request.messages = ReadMessages(value, path, limits, request.ignored);
                    }});
  fields.push_back({"chat_template_kwargs", kTokenize, "Variables for the chat template.",
                    OrderedJson{{"type", "object"}},
                    [](const Json& value, const std::string& path, R& request) {
                      request.template_arguments = ReadTemplateArguments(value, path);
                    }});
  fields.push_back(Bool<R>(
      "add_special_tokens", kTokenize, [](R& r, bool v) { r.add_special_tokens = v; },
      "Begins the text as the model expects; default: for a prompt yes, for "
      "a conversation no."));
  fields.push_back(Bool<R>(
      "return_token_strs", kTokenize, [](R& r, bool v) { r.return_token_strings = v; },
      "Lists the text of each token as well."));
  AddToolFields(fields);
  fields.push_back({"model", kTokenize, "Accepted and not used.", OrderedJson::object(),
                    [](const Json&, const std::string&, R&) {}});
  AddKnown(kTokenize, kTokenize, fields);
  return fields;
}

}  // namespace loopspec::serve

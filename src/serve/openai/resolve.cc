#include "serve/openai/resolve.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "base/field_error.h"
#include "base/random_seed.h"
#include "fields/max_tokens.h"
#include "serve/openai/answer.h"
#include "serve/openai/text.h"
#include "serve/openai/tool_fields.h"
#include "text/chat_json.h"
#include "text/tool_grammar.h"
#include "text/tool_reader.h"

namespace loopspec::serve {
namespace {

constexpr int kDefaultCompletionTokens = 16;  // OpenAI's
constexpr int kDefaultGenerateTokens = 128;   // SGLang's

void CheckIds(const std::vector<int32_t>& ids, const std::string& name, int vocab) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab) {
      Refuse(name, "{} has token {}, the vocabulary has {}.", name, id, vocab);
    }
  }
}

void CheckDepths(const Request& request, const ModelFacts& facts) {
  if (!request.depths) return;
  if (request.decoding != Decoding::kLoopSpec)
    Refuse("depths", "depths goes with decode: loopspec.");
  if (std::find(facts.depths.begin(), facts.depths.end(), *request.depths) != facts.depths.end())
    return;
  Refuse("depths", "depths is {}, expected auto or one of {}: the server was started with these.",
         Json(*request.depths).dump(), Json(facts.depths).dump());
}

void CheckRecurrence(const Request& request, const ModelFacts& facts) {
  if (!request.recurrence) return;
  const std::vector<int>& known = facts.recurrences;
  if (std::find(known.begin(), known.end(), *request.recurrence) == known.end()) {
    Refuse("recurrence",
           "recurrence is {}, expected one of {}: the model was trained for {}, and the server was "
           "started for these.",
           *request.recurrence, Json(known).dump(), facts.trained_recurrence);
  }
  if (request.depths && !request.depths->empty() && request.depths->back() >= *request.recurrence) {
    Refuse("depths", "depths is {}, expected depths below {}, the recurrence asked for.",
           Json(*request.depths).dump(), *request.recurrence);
  }
}

// Runs `check` and names the field whose value it finds fault with.
template <typename F>
auto Blaming(const std::string& field, F check) {
  try {
    return check();
  } catch (const Error& error) {
    ApiError refused;
    refused.message = fmt::format("{}: {}.", field, error.what());
    refused.param = field;
    refused.log = fmt::format("{} is refused.", field);  // the rest quotes it
    throw ApiException(std::move(refused));
  }
}

// Compiles the grammar, so that what is wrong with it is told before anything else happens, and
// adds the keywords that are ignored.
void CheckGrammar(const std::string& field, const GrammarSource& grammar, const Engine& engine,
                  IgnoredFields& ignored) {
  for (const std::string& keyword : Blaming(field, [&] { return engine.CheckGrammar(grammar); }))
    ignored.Add(keyword);
}

bool CallsTools(const CompletionRequest& request) {
  return request.endpoint == kChat && request.tools.choice != ToolChoice::kNone &&
         !request.tools.tools.empty();
}

// What the template is given besides the messages.
OrderedJson TemplateArguments(const CompletionRequest& request, const ModelFacts& facts) {
  OrderedJson arguments = request.template_arguments;
  const std::string source = facts.chat_template.value_or("");
  const auto tell = [&](const char* name, OrderedJson value) {
    if (source.find(name) != source.npos && !arguments.contains(name))
      arguments[name] = std::move(value);
  };
  if (!request.reasoning_effort.empty()) tell("reasoning_effort", request.reasoning_effort);
  if (request.reasoning_effort == "none" || request.reasoning_effort == "minimal")
    tell("enable_thinking", false);
  if (CallsTools(request)) arguments["tools"] = request.tools.tools;
  return arguments;
}

// Holds the answer to the tools that it may call, and has their calls read. Beside a grammar of the
// request's own, which must be a schema, the answer is that or calls.
void UseTools(const CompletionRequest& request, const CallContext& context,
              const OrderedJson& arguments, Request& common, AnswerSetup& setup,
              IgnoredFields& ignored) {
  const Engine& engine = *context.engine;
  const std::vector<Tool> tools = ToolsToCall(request.tools);
  const ToolFormat format = ToolFormatOf(engine.facts().chat_template.value_or(""), arguments);
  ToolGrammarOptions options;
  options.required = request.tools.choice != ToolChoice::kAuto;
  options.parallel = request.tools.parallel && request.tools.choice != ToolChoice::kNamed;
  if (!options.required && !request.grammar_field.empty()) {
    if (common.grammar.kind != GrammarKind::kJsonSchema) {
      Refuse(request.grammar_field,
             "{} is no JSON schema, which alone goes with tools that may be called.",
             request.grammar_field);
    }
    options.schema = common.grammar.text;
  }
  const auto rules = [&](const std::vector<Tool>& named, bool strict) {
    const ToolGrammar grammar =
        Blaming("tools", [&] { return GrammarOfTools(format, named, options); });
    if (strict && !grammar.ignored.empty())
      Refuse("tools", "tools: the keyword {} cannot be enforced in this model's form of calls.",
             grammar.ignored[0]);
    for (const std::string& keyword : grammar.ignored) ignored.Add(keyword);
    return GrammarSource{GrammarKind::kGbnf, grammar.rules, strict, grammar.after};
  };
  // The strict ones by themselves: what cannot be enforced is refused for these alone.
  std::vector<Tool> strict = tools;
  std::erase_if(strict, [](const Tool& tool) { return !tool.strict; });
  if (!strict.empty()) CheckGrammar("tools", rules(strict, true), engine, ignored);
  common.grammar = rules(tools, strict.size() == tools.size());
  CheckGrammar("tools", common.grammar, engine, ignored);
  setup.split.calls = MakeToolReader(format, tools);
}

// Tokens of an answer whose length the request does not say.
int64_t DefaultTokens(Endpoint endpoint, int64_t left) {
  if (endpoint == kCompletions) return std::min<int64_t>(kDefaultCompletionTokens, left);
  if (endpoint == kGenerate) return std::min<int64_t>(kDefaultGenerateTokens, left);
  return left;
}

// Tokens that an answer may have, checked against the context and the server's limit. `name`: the
// prompt in messages.
int MaxTokens(const CompletionRequest& request, int64_t prompt_tokens, const std::string& name,
              const CallContext& context) {
  const int64_t positions = context.engine->facts().context;
  const int64_t limit =
      context.max_tokens_limit > 0 ? context.max_tokens_limit : std::numeric_limits<int>::max();
  if (request.asked.max_tokens.value_or(0) > limit && !request.clamp_max_tokens) {
    Refuse("max_tokens", "max_tokens is {}, expected at most {}.", *request.asked.max_tokens,
           limit);
  }
  try {
    const int least = request.clamp_max_tokens ? 1 : request.asked.max_tokens.value_or(1);
    CheckLength(prompt_tokens, least, positions);
  } catch (const FieldError& error) {
    ApiError refusal;
    refusal.message = error.Worded(error.field() == "prompt" ? name : error.field()) + ".";
    refusal.param = name;
    refusal.code = "context_length_exceeded";
    throw ApiException(std::move(refusal));
  }
  const int64_t most = std::min(positions - prompt_tokens, limit);
  if (!request.asked.max_tokens)
    return static_cast<int>(std::min(DefaultTokens(request.endpoint, most), limit));
  if (!request.clamp_max_tokens) return *request.asked.max_tokens;
  return static_cast<int>(std::min<int64_t>(*request.asked.max_tokens, most));
}

// Scores of prompts come all at once and are held until the answer is sent: a hundred long prompts
// would take gigabytes.
void CheckScores(const CompletionRequest& request, int64_t prompt_tokens, int64_t most) {
  if (!request.echo || !request.asked.logprobs) return;
  const int64_t scores = prompt_tokens * request.asked.choices * (1 + *request.asked.logprobs);
  if (scores <= most) return;
  Refuse(
      "logprobs",
      "echo asks for {} log-probabilities ({} prompt tokens, n = {}, logprobs = {}), expected at "
      "most {}.",
      scores, prompt_tokens, request.asked.choices, *request.asked.logprobs, most);
}

// All but the prompt and what depends on its length.
Request ToRequest(const CompletionRequest& from, const CallContext& context) {
  Request to = from.asked;
  to.sampling = from.sampling.Over(context.sampling.value_or(context.engine->facts().sampling));
  if (from.likeliest) {
    to.sampling->temperature = 0;
    to.sampling->top_p = 1;
  }
  if (!to.seed) to.seed = context.seed ? *context.seed : RandomSeed();
  to.hide_stop_tokens = true;
  if (from.echo) to.prompt_logprobs = to.logprobs;
  return to;
}

// The ids that `encode` makes within limits: it gives up as soon as the text is known to be too
// long.
template <typename F>
std::vector<int32_t> Limited(const std::string& name, const CallContext& context, F encode) {
  const int64_t positions = context.engine->facts().context;
  try {
    return encode(EncodeLimits{positions, context.cancelled});
  } catch (const TooManyTokens& error) {
    ApiError refusal;
    refusal.message =
        fmt::format("{} has at least {} tokens: the context has {}, for prompt and answer.", name,
                    error.at_least(), positions);
    refusal.param = name;
    refusal.code = "context_length_exceeded";
    throw ApiException(std::move(refusal));
  }
}

std::string PromptText(const PromptInput& prompt, const Engine& engine) {
  return prompt.text ? *prompt.text : engine.Decode(prompt.ids);
}

// Ids, and the text that the template gives.
std::vector<int32_t> Conversation(const CompletionRequest& request, const CallContext& context,
                                  const OrderedJson& arguments, std::string& text) {
  try {
    return Limited(request.messages_field, context, [&](const EncodeLimits& limits) {
      return context.engine->EncodeChat(ChatJson{request.messages, arguments}, &text, limits);
    });
  } catch (const Error& error) {
    ApiError refused;
    refused.message = fmt::format("{}.", error.what());
    refused.param = request.messages_field;
    refused.log = fmt::format("The chat template refuses {}.",
                              request.messages_field);  // its words may quote them
    throw ApiException(std::move(refused));
  }
}

}  // namespace

TextCall Resolve(const CompletionRequest& request, const CallContext& context,
                 const MakeAnswer& make) {
  const Engine& engine = *context.engine;
  const ModelFacts& facts = engine.facts();
  CheckDepths(request.asked, facts);
  CheckRecurrence(request.asked, facts);
  for (const TokenBias& entry : request.sampling.said().bias)
    CheckIds({entry.token}, "logit_bias", facts.vocab);
  CheckIds(request.asked.stop_tokens, "stop_token_ids", facts.vocab);
  Request common = ToRequest(request, context);

  TextCall call;
  const std::string grammar_field = CallsTools(request) ? "tools" : request.grammar_field;
  if (request.asked.ignore_eos && !grammar_field.empty()) {
    Refuse("ignore_eos", "ignore_eos is true, expected false, since {} says where the text ends.",
           grammar_field);
  }
  if (!request.grammar_field.empty())
    CheckGrammar(request.grammar_field, common.grammar, engine, call.ignored_keywords);
  call.stream = request.stream;
  AnswerSetup setup;
  setup.n = request.asked.choices;
  setup.seed = *common.seed;
  setup.split.split_reasoning = request.reasoning == ReasoningFormat::kReasoningContent;
  const bool chat = request.endpoint == kChat;
  std::string rendered;  // of a chat
  std::vector<int32_t> ids;
  if (chat) {
    const OrderedJson arguments = TemplateArguments(request, facts);
    if (CallsTools(request))
      UseTools(request, context, arguments, common, setup, call.ignored_keywords);
    ids = Conversation(request, context, arguments, rendered);
    setup.split.in_reasoning = EndsInThink(rendered);
    setup.split.may_open_reasoning = MayOpenThink(facts.chat_template.value_or(""), rendered);
  }
  const size_t prompts = chat ? 1 : request.prompts.size();
  const std::string name = chat ? request.messages_field : "prompt";
  if (const auto answers = static_cast<int64_t>(prompts) * request.asked.choices;
      answers > facts.max_queued) {
    Refuse(prompts > 1 ? name : "n", "{} prompts and n = {} make {} answers, the queue holds {}.",
           prompts, request.asked.choices, answers, facts.max_queued);
  }
  for (size_t i = 0; i < prompts; ++i) {
    const std::string path = prompts > 1 ? fmt::format("{}[{}]", name, i) : name;
    Request& one = call.requests.emplace_back(common);
    if (chat) {
      one.tokens = std::move(ids);
      one.grammar.thinking = setup.split.split_reasoning;
    } else {
      const PromptInput& prompt = request.prompts[i];
      one.tokens =
          !prompt.text ? prompt.ids : Limited(path, context, [&](const EncodeLimits& limits) {
            return engine.Encode(*prompt.text, true, limits);
          });
    }
    if (one.tokens.empty()) Refuse(path, "{} has no tokens.", path);
    CheckIds(one.tokens, path, facts.vocab);
    const auto tokens = static_cast<int64_t>(one.tokens.size());
    one.max_tokens = MaxTokens(request, tokens, path, context);
    call.prompt_tokens += tokens;
    setup.prompts.push_back(
        {one.tokens[0], tokens, request.echo ? PromptText(request.prompts[i], engine) : ""});
  }
  setup.max_tokens = *call.requests[0].max_tokens;
  if (setup.max_tokens < request.asked.max_tokens.value_or(0)) call.clamped = setup.max_tokens;
  CheckScores(request, call.prompt_tokens, context.max_scores);
  call.choices = static_cast<int>(prompts) * request.asked.choices;
  if (context.keep_prompt)
    call.prompt = chat ? std::move(rendered) : PromptText(request.prompts[0], engine);
  call.answer = make ? make(std::move(setup))
                     : std::make_unique<CompletionAnswer>(CompletionAnswer::Form(request, context),
                                                          std::move(setup));
  return call;
}

SamplingParams ServedSampling(const ModelFacts& facts) {
  SamplingParams sampling = facts.sampling;
  if (!facts.sampling_chosen) sampling.temperature = 1;
  return sampling;
}

ResolveCall ReadTextCall(Endpoint endpoint, std::string_view body, const WireParser& parser,
                         IgnoredFields* ignored) {
  auto request = std::make_shared<const CompletionRequest>(parser.Completion(endpoint, body));
  if (ignored != nullptr) *ignored = request->ignored;
  return [request = std::move(request)](const CallContext& context) {
    return Resolve(*request, context);
  };
}

}  // namespace loopspec::serve

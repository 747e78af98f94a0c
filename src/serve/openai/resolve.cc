#include "serve/openai/resolve.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/random_seed.h"
#include "serve/openai/answer.h"
#include "serve/openai/text.h"

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

void CheckDepths(const CompletionRequest& request, const ModelFacts& facts) {
  if (!request.depths) return;
  if (request.decode == "ar") Refuse("depths", "depths goes with decode: loopspec.");
  if (std::find(facts.depths.begin(), facts.depths.end(), *request.depths) != facts.depths.end())
    return;
  Refuse("depths", "depths is {}, expected auto or one of {}: the server was started with these.",
         Json(*request.depths).dump(), Json(facts.depths).dump());
}

void CheckRecurrence(const CompletionRequest& request, const ModelFacts& facts) {
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

// Tokens that an answer may have, checked against the context and the server's limit.
int MaxTokens(const CompletionRequest& request, int64_t prompt_tokens, const std::string& name,
              const CallContext& context) {
  const int64_t positions = context.engine->facts().context;
  const auto refuse = [&](std::string message) {
    ApiError error;
    error.message = std::move(message);
    error.param = name;
    error.code = "context_length_exceeded";
    throw ApiException(std::move(error));
  };
  const int64_t least = request.max_tokens == 0 ? 0 : 1;
  if (prompt_tokens + least > positions) {
    refuse(fmt::format("{} has {} tokens, which leaves no room for an answer: the context has {}.",
                       name, prompt_tokens, positions));
  }
  const int64_t left = positions - prompt_tokens;
  const int64_t limit = context.max_tokens_limit;
  if (request.max_tokens) {
    if (limit > 0 && *request.max_tokens > limit) {
      Refuse("max_tokens", "max_tokens is {}, expected at most {}.", *request.max_tokens, limit);
    }
    if (*request.max_tokens > left) {
      refuse(
          fmt::format("{} has {} tokens and max_tokens is {}, together more than the context "
                      "of {}.",
                      name, prompt_tokens, *request.max_tokens, positions));
    }
    return *request.max_tokens;
  }
  int64_t most = left;
  if (request.endpoint == kCompletions) most = kDefaultCompletionTokens;
  if (request.endpoint == kGenerate) most = kDefaultGenerateTokens;
  if (limit > 0) most = std::min(most, limit);
  return static_cast<int>(std::min(most, left));
}

// Scores of prompts come all at once and are held until the answer is sent: a hundred long prompts
// would take gigabytes.
void CheckScores(const CompletionRequest& request, int64_t prompt_tokens, int64_t most) {
  if (!request.echo || !request.logprobs) return;
  const int64_t scores = prompt_tokens * request.n * (1 + *request.logprobs);
  if (scores <= most) return;
  Refuse(
      "logprobs",
      "echo asks for {} log-probabilities ({} prompt tokens, n = {}, logprobs = {}), expected at "
      "most {}.",
      scores, prompt_tokens, request.n, *request.logprobs, most);
}

SamplingParams ToSampling(const SamplingFields& fields, const SamplingParams& defaults) {
  const auto number = [](std::optional<double> given, float otherwise) {
    return given ? static_cast<float>(*given) : otherwise;
  };
  SamplingParams out;
  out.temperature = number(fields.temperature, defaults.temperature);
  if (fields.top_p == 0.0) out.temperature = 0;  // nothing but the likeliest token
  out.top_k = fields.top_k.value_or(defaults.top_k);
  out.top_p = fields.top_p == 0.0 ? 1.0f : number(fields.top_p, defaults.top_p);
  out.min_p = number(fields.min_p, defaults.min_p);
  out.repetition_penalty = number(fields.repetition_penalty, defaults.repetition_penalty);
  out.presence_penalty = number(fields.presence_penalty, 0);
  out.frequency_penalty = number(fields.frequency_penalty, 0);
  for (const auto& [id, bias] : fields.logit_bias) {
    out.bias.push_back({id, static_cast<float>(bias)});
  }
  out.sampler = fields.sampler == "coupled" ? Sampler::kCoupled : Sampler::kCascade;
  return out;
}

// All but the prompt and what depends on its length.
Request ToRequest(const CompletionRequest& from, const SamplingParams& defaults) {
  Request to;
  to.sampling = ToSampling(from.sampling, defaults);
  to.seed = from.seed ? *from.seed : RandomSeed();
  to.choices = from.n;
  to.stop = from.stop;
  to.stop_tokens = from.stop_token_ids;
  to.hide_stop_tokens = true;
  to.ignore_eos = from.ignore_eos;
  to.priority = from.priority;
  to.logprobs = from.logprobs;
  if (from.echo) to.prompt_logprobs = from.logprobs;
  to.trace = from.trace;
  to.decoding = from.decode == "ar" ? Decoding::kAutoregressive : Decoding::kLoopSpec;
  to.depths = from.depths;
  to.recurrence = from.recurrence;
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
                                  std::string& text) {
  try {
    return Limited("messages", context, [&](const EncodeLimits& limits) {
      return context.engine->EncodeChat(request.messages.dump(), request.template_arguments.dump(),
                                        &text, limits);
    });
  } catch (const Error& error) {
    ApiError refused;
    refused.message = fmt::format("{}.", error.what());
    refused.param = "messages";
    refused.log = "The chat template refuses messages.";  // its words may quote them
    throw ApiException(std::move(refused));
  }
}

}  // namespace

TextCall Resolve(const CompletionRequest& request, const CallContext& context) {
  const Engine& engine = *context.engine;
  const ModelFacts& facts = engine.facts();
  CheckDepths(request, facts);
  CheckRecurrence(request, facts);
  for (const auto& [id, bias] : request.sampling.logit_bias) {
    CheckIds({id}, "logit_bias", facts.vocab);
  }
  CheckIds(request.stop_token_ids, "stop_token_ids", facts.vocab);
  const Request common = ToRequest(request, context.sampling.value_or(facts.sampling));

  TextCall call;
  call.stream = request.stream;
  CompletionAnswer::Setup setup(request, context);
  setup.seed = *common.seed;
  const bool chat = request.endpoint == kChat;
  std::string rendered;  // of a chat
  std::vector<int32_t> ids;
  if (chat) {
    ids = Conversation(request, context, rendered);
    setup.in_reasoning = EndsInThink(rendered);
  }
  const size_t prompts = chat ? 1 : request.prompts.size();
  const char* name = chat ? "messages" : "prompt";
  if (const auto answers = static_cast<int64_t>(prompts) * request.n; answers > facts.max_queued) {
    Refuse(prompts > 1 ? name : "n", "{} prompts and n = {} make {} answers, the queue holds {}.",
           prompts, request.n, answers, facts.max_queued);
  }
  for (size_t i = 0; i < prompts; ++i) {
    const std::string path = prompts > 1 ? fmt::format("{}[{}]", name, i) : name;
    Request& one = call.requests.emplace_back(common);
    if (chat) {
      one.tokens = std::move(ids);
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
  CheckScores(request, call.prompt_tokens, context.max_scores);
  call.choices = static_cast<int>(prompts) * request.n;
  if (context.keep_prompt)
    call.prompt = chat ? std::move(rendered) : PromptText(request.prompts[0], engine);
  call.answer = std::make_unique<CompletionAnswer>(std::move(setup));
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

#include "serve/openai/write.h"

#include <cmath>

#include "serve/openai/text.h"

namespace loopspec::serve {
namespace {

// JSON has no infinity; the field writes this for the logarithm of nothing.
double Logprob(double value) {
  return std::isfinite(value) ? value : -9999.0;
}

OrderedJson OptionalText(const std::string& text) {
  return text.empty() ? OrderedJson(nullptr) : OrderedJson(text);
}

template <typename T>
OrderedJson OrNull(const std::optional<T>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

OrderedJson Bytes(std::string_view piece) {
  OrderedJson bytes = OrderedJson::array();
  for (const char byte : piece) bytes.push_back(static_cast<unsigned char>(byte));
  return bytes;
}

// The token itself is listed even when it is not among the likeliest.
std::vector<Alternative> Candidates(const Token& token, size_t count) {
  std::vector<Alternative> all(
      token.top.begin(),
      token.top.begin() + static_cast<std::ptrdiff_t>(std::min(token.top.size(), count)));
  for (const Alternative& candidate : all) {
    if (candidate.id == token.id) return all;
  }
  all.push_back({token.id, token.logprob.value_or(0)});
  return all;
}

OrderedJson CompletionLogprobs(const ChoicePart& part, const TokenPieces& pieces, int count) {
  OrderedJson tokens = OrderedJson::array(), logprobs = OrderedJson::array();
  OrderedJson top = OrderedJson::array(), offsets = OrderedJson::array();
  size_t offset = part.text_offset;
  for (const Token& token : part.tokens) {
    tokens.push_back(TokenText(pieces(token.id)));
    offsets.push_back(offset);
    offset += CountStarts(pieces(token.id));
    if (!token.logprob) {  // the first token of a prompt has no prefix to be likely on
      logprobs.push_back(nullptr);
      top.push_back(nullptr);
      continue;
    }
    logprobs.push_back(Logprob(*token.logprob));
    // Two tokens may look the same; the likelier one comes first and stays.
    Json likeliest = Json::object();
    for (const Alternative& candidate : Candidates(token, static_cast<size_t>(count))) {
      likeliest.emplace(TokenText(pieces(candidate.id)), Logprob(candidate.logprob));
    }
    top.push_back(count > 0 ? OrderedJson(likeliest) : OrderedJson(nullptr));
  }
  return {{"tokens", tokens},
          {"token_logprobs", logprobs},
          {"top_logprobs", count > 0 ? top : OrderedJson(nullptr)},
          {"text_offset", offsets}};
}

OrderedJson ChatLogprobs(const ChoicePart& part, const TokenPieces& pieces, int count) {
  OrderedJson content = OrderedJson::array();
  for (const Token& token : part.tokens) {
    OrderedJson top = OrderedJson::array();
    for (size_t i = 0; i < token.top.size() && i < static_cast<size_t>(count); ++i) {
      const std::string_view piece = pieces(token.top[i].id);
      top.push_back({{"token", TokenText(piece)},
                     {"logprob", Logprob(token.top[i].logprob)},
                     {"bytes", Bytes(piece)}});
    }
    const std::string_view piece = pieces(token.id);
    content.push_back({{"token", TokenText(piece)},
                       {"logprob", Logprob(token.logprob.value_or(0))},
                       {"bytes", Bytes(piece)},
                       {"top_logprobs", std::move(top)}});
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

OrderedJson LogprobsOf(const ResponseHead& head, const ChoicePart& part,
                       const WriteOptions& options) {
  if (!options.logprobs) return nullptr;
  return head.endpoint == kChat ? ChatLogprobs(part, options.pieces, *options.logprobs)
                                : CompletionLogprobs(part, options.pieces, *options.logprobs);
}

OrderedJson Details(const ChoicePart& part) {
  OrderedJson list = OrderedJson::array();
  for (const Token& token : part.tokens) {
    list.push_back(
        {{"id", token.id}, {"text", token.text}, {"source", token.source}, {"early", token.early}});
  }
  return list;
}

// Only what means something for the kind of event.
OrderedJson StepJson(const TraceEvent& step, const TokenPieces& pieces) {
  using StepKind = TraceEvent::Kind;
  OrderedJson json = {{"kind", NameOf(step.kind)}, {"step", step.step}, {"branch", step.branch}};
  if (step.kind == StepKind::kAdvance) {
    json["depth"] = step.depth;
    json["recurrences"] = step.proposal;
    return json;
  }
  if (step.kind == StepKind::kPrune) return json;
  if (step.kind == StepKind::kSpawn) json["parent"] = step.parent;
  json["position"] = step.position;
  json["proposal"] = step.proposal;
  if (step.token < 0) return json;
  json["token"] = step.token;
  json["text"] = TokenText(pieces(step.token));
  return json;
}

void AddDetails(const ChoicePart& part, const WriteOptions& options, OrderedJson& choice) {
  if (options.token_details) choice["tokens"] = Details(part);
  if (!options.trace) return;
  OrderedJson& steps = choice["steps"] = OrderedJson::array();
  for (const TraceEvent& step : part.steps) steps.push_back(StepJson(step, options.pieces));
}

// The string or the token that ended the text, null for the model's own end.
OrderedJson StopReason(const Statistics& finish) {
  if (finish.stop_string) return *finish.stop_string;
  return OrNull(finish.stop_token);
}

void AddFinish(const ChoicePart& part, OrderedJson& choice) {
  const bool calls = part.finish && part.finish->finish_reason == FinishReason::kStop &&
                     part.called && !part.call_cut;
  choice["finish_reason"] = calls         ? OrderedJson("tool_calls")
                            : part.finish ? OrderedJson(NameOf(part.finish->finish_reason))
                                          : OrderedJson(nullptr);
  if (part.finish) choice["stop_reason"] = StopReason(*part.finish);
}

// `event`: pieces of a stream, which say which call they belong to.
OrderedJson CallsJson(const std::vector<CallPart>& calls, bool event) {
  OrderedJson list = OrderedJson::array();
  for (const CallPart& call : calls) {
    OrderedJson json = OrderedJson::object();
    if (event) json["index"] = call.index;
    OrderedJson function = OrderedJson::object();
    if (!call.id.empty()) {
      json["id"] = call.id;
      json["type"] = "function";
      function["name"] = call.name;
    }
    function["arguments"] = call.arguments;
    json["function"] = std::move(function);
    list.push_back(std::move(json));
  }
  return list;
}

// What is said, which is nothing beside calls alone.
OrderedJson ContentJson(const ChoicePart& part) {
  return part.text.empty() && part.called ? OrderedJson(nullptr) : OrderedJson(part.text);
}

OrderedJson HeadJson(const ResponseHead& head, bool event) {
  const char* object = head.endpoint != kChat ? "text_completion"
                       : event                ? "chat.completion.chunk"
                                              : "chat.completion";
  return {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

}  // namespace

size_t CountStarts(std::string_view piece) {
  size_t count = 0;
  for (const char byte : piece) count += (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  return count;
}

OrderedJson UsageJson(const Usage& usage, bool reproducible) {
  OrderedJson json = {{"prompt_tokens", usage.prompt_tokens},
                      {"completion_tokens", usage.completion_tokens},
                      {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
  if (!reproducible) json["prompt_tokens_details"] = {{"cached_tokens", usage.cached_tokens}};
  return json;
}

OrderedJson SummaryJson(const RunSummary& summary, bool reproducible) {
  if (reproducible) return {{"seed", summary.seed}};
  return {{"accepted", summary.accepted},
          {"fallback", summary.fallback},
          {"early", summary.early},
          {"gamma", summary.gamma},
          {"tokens_per_pass", summary.tokens_per_pass},
          {"tokens_per_second", summary.tokens_per_second},
          {"cached_tokens", summary.cached_tokens},
          {"seed", summary.seed}};
}

OrderedJson ErrorJson(const ApiError& error) {
  return {{"error",
           {{"message", error.message},
            {"type", error.type},
            {"param", OptionalText(error.param)},
            {"code", OptionalText(error.code)}}}};
}

OrderedJson CompletionBody(const ResponseHead& head, std::span<const ChoicePart* const> choices,
                           const Usage& usage, const RunSummary& summary,
                           const WriteOptions& options) {
  OrderedJson list = OrderedJson::array();
  for (const ChoicePart* given : choices) {
    const ChoicePart& part = *given;
    OrderedJson choice = {{"index", part.index}};
    if (head.endpoint == kChat) {
      OrderedJson message = {
          {"role", "assistant"}, {"content", ContentJson(part)}, {"refusal", nullptr}};
      if (part.split_reasoning) {
        for (const char* name : {"reasoning_content", "reasoning"})
          message[name] = OptionalText(part.reasoning);
      }
      if (!part.calls.empty()) message["tool_calls"] = CallsJson(part.calls, false);
      choice["message"] = std::move(message);
    } else {
      choice["text"] = part.text;
    }
    choice["logprobs"] = LogprobsOf(head, part, options);
    AddFinish(part, choice);
    AddDetails(part, options, choice);
    list.push_back(std::move(choice));
  }
  OrderedJson body = HeadJson(head, false);
  body["choices"] = std::move(list);
  body["usage"] = UsageJson(usage, options.reproducible);
  body["loopspec"] = SummaryJson(summary, options.reproducible);
  return body;
}

OrderedJson CompletionEvent(const ResponseHead& head, const ChoicePart& part,
                            const RunSummary* summary, const WriteOptions& options,
                            const Usage* usage) {
  OrderedJson choice = {{"index", part.index}};
  if (head.endpoint == kChat) {
    OrderedJson delta = OrderedJson::object();
    if (part.first) delta["role"] = "assistant";
    if (part.first || !part.text.empty()) delta["content"] = ContentJson(part);
    if (!part.reasoning.empty()) {
      for (const char* name : {"reasoning_content", "reasoning"}) delta[name] = part.reasoning;
    }
    if (!part.calls.empty()) delta["tool_calls"] = CallsJson(part.calls, true);
    choice["delta"] = std::move(delta);
  } else {
    choice["text"] = part.text;
  }
  choice["logprobs"] = part.tokens.empty() ? OrderedJson(nullptr) : LogprobsOf(head, part, options);
  AddFinish(part, choice);
  AddDetails(part, options, choice);
  OrderedJson event = HeadJson(head, true);
  event["choices"] = OrderedJson::array({std::move(choice)});
  if (options.usage_in_stream) event["usage"] = nullptr;
  if (usage != nullptr) event["usage"] = UsageJson(*usage);
  if (summary != nullptr) event["loopspec"] = SummaryJson(*summary);
  return event;
}

OrderedJson UsageEvent(const ResponseHead& head, const Usage& usage) {
  OrderedJson event = HeadJson(head, true);
  event["choices"] = OrderedJson::array();
  event["usage"] = UsageJson(usage);
  return event;
}

OrderedJson GenerateJson(const ResponseHead& head, const ChoicePart& choice, const Usage& usage,
                         const RunSummary* summary, double seconds, const WriteOptions& options) {
  OrderedJson finish = nullptr;
  if (choice.finish && choice.finish->finish_reason == FinishReason::kLength) {
    finish = {{"type", "length"}, {"length", usage.completion_tokens}};
  } else if (choice.finish) {
    finish = {{"type", NameOf(choice.finish->finish_reason)},
              {"matched", StopReason(*choice.finish)}};
  }
  OrderedJson info = {{"id", head.id},
                      {"finish_reason", std::move(finish)},
                      {"prompt_tokens", usage.prompt_tokens},
                      {"completion_tokens", usage.completion_tokens}};
  if (!options.reproducible) {
    info["cached_tokens"] = usage.cached_tokens;
    info["e2e_latency"] = seconds;
  }
  if (options.logprobs) {
    const auto triple = [&](double logprob, int32_t id) {
      return OrderedJson::array({Logprob(logprob), id, TokenText(options.pieces(id))});
    };
    OrderedJson tokens = OrderedJson::array(), top = OrderedJson::array();
    for (const Token& token : choice.all_tokens) {
      tokens.push_back(triple(token.logprob.value_or(0), token.id));
      OrderedJson list = OrderedJson::array();
      for (const Alternative& candidate : token.top) {
        list.push_back(triple(candidate.logprob, candidate.id));
      }
      top.push_back(std::move(list));
    }
    info["output_token_logprobs"] = std::move(tokens);
    if (*options.logprobs > 0) info["output_top_logprobs"] = std::move(top);
  }
  if (summary != nullptr) info["loopspec"] = SummaryJson(*summary, options.reproducible);
  OrderedJson body = {{"text", choice.whole_text}, {"output_ids", choice.ids}};
  AddDetails(choice, options, body);
  body["meta_info"] = std::move(info);
  return body;
}

OrderedJson ModelJson(const ModelFacts& facts, const SamplingParams& served,
                      const std::string& name, int64_t created) {
  const auto sampling = [](const SamplingParams& params) {
    return ToJson(params,
                  [](const SamplingField& field) { return field.generation_config.has_value(); });
  };
  return {{"id", name},
          {"object", "model"},
          {"created", created},
          {"owned_by", "loopspec"},
          {"root", name},
          {"parent", nullptr},
          {"max_model_len", facts.context},
          {"loopspec",
           {{"recurrence", facts.recurrence},
            {"kv_type", facts.kv_type},
            {"recurrences", facts.recurrences},
            {"trained_recurrence", facts.trained_recurrence},
            {"depths", facts.depths},
            {"sampling", sampling(served)},
            {"models_own_sampling", sampling(facts.sampling)}}}};
}

OrderedJson TokenizerInfoJson(const ModelFacts& facts) {
  return {{"tokenizer_class", "loopspec"},        {"vocab_size", facts.vocab},
          {"bos_token", OrNull(facts.bos_token)}, {"eos_token", OrNull(facts.eos_token)},
          {"pad_token", OrNull(facts.pad_token)}, {"eos_token_ids", facts.eos_ids},
          {"model_max_length", facts.context},    {"chat_template", OrNull(facts.chat_template)}};
}

OrderedJson ModelInfoJson(const ModelFacts& facts, const std::string& name) {
  return {{"model_path", name},
          {"tokenizer_path", facts.has_tokenizer ? OrderedJson(name) : OrderedJson(nullptr)},
          {"served_model_name", name},
          {"is_generation", true},
          {"preferred_sampling_params", nullptr},
          {"weight_version", "default"},
          {"has_image_understanding", false},
          {"has_audio_understanding", false},
          {"max_context_length", facts.context},
          {"vocab_size", facts.vocab},
          {"eos_token_ids", facts.eos_ids}};
}

OrderedJson ServerInfoJson(const ModelFacts& facts, const std::string& name,
                           const std::string& version) {
  OrderedJson info = ModelInfoJson(facts, name);
  info["version"] = version;
  info["device"] = facts.device;
  info["dtype"] = facts.compute;
  info["kv_cache_dtype"] = facts.kv_type;
  info["context_length"] = facts.context;
  for (const char* size : {"tp_size", "dp_size", "pp_size"}) info[size] = 1;
  info["disaggregation_mode"] = "null";
  info["is_embedding"] = false;
  return info;
}

OrderedJson LoadsJson(const EngineMetrics& metrics, const std::string& version, double now) {
  const int running = metrics.prefilling + metrics.decoding;
  const int waiting = metrics.waiting + metrics.preempted;
  const int used = metrics.pages - metrics.pages_free;
  const double usage = metrics.pages > 0 ? static_cast<double>(used) / metrics.pages : 0;
  const OrderedJson load = {
      {"dp_rank", 0},
      {"num_running_reqs", running},
      {"num_waiting_reqs", waiting},
      {"num_total_reqs", running + waiting},
      {"num_used_tokens", int64_t{used} * metrics.page_positions},
      {"max_total_num_tokens", int64_t{metrics.pages} * metrics.page_positions},
      {"token_usage", usage}};
  return {{"timestamp", now},
          {"version", version},
          {"dp_rank_count", 1},
          {"loads", OrderedJson::array({load})},
          {"aggregate",
           {{"total_running_reqs", running},
            {"total_waiting_reqs", waiting},
            {"total_reqs", running + waiting},
            {"avg_token_usage", usage}}}};
}

std::string Dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string ServerSentEvent(const OrderedJson& json) {
  return "data: " + Dump(json) + "\n\n";
}

}  // namespace loopspec::serve

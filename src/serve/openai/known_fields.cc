#include "serve/openai/known_fields.h"

#include <algorithm>

#include "serve/openai/error.h"
#include "serve/openai/types.h"

namespace loopspec::serve {
namespace {

constexpr unsigned kOpenAi = kOpenAiEndpoints;
constexpr unsigned kText = kTextEndpoints;
constexpr unsigned kSglang = kText | kSamplingParams;

// clang-format off
constexpr KnownField kFields[] = {
    // ---- OpenAI ----
    {"model", kText, "any"},
    {"user", kOpenAi, "any"},
    {"metadata", kOpenAi, "any"},
    {"store", kOpenAi, "any"},
    {"service_tier", kOpenAi, "any"},
    {"safety_identifier", kOpenAi, "any"},
    {"prompt_cache_key", kOpenAi, "any"},
    {"prompt_cache_retention", kOpenAi, "any"},
    {"functions", kChat, "[[]]", "tools"},
    {"function_call", kChat, R"(["none", "auto"])", "tool_choice"},
    {"modalities", kChat, R"([["text"]])"},
    {"audio", kChat, "[]"},
    {"prediction", kChat, "[]"},
    {"web_search_options", kChat, "[]"},
    {"verbosity", kChat, R"(["medium"])"},
    {"suffix", kCompletions, R"([""])"},
    {"include_obfuscation", kStreamOptions, "any"},

    // ---- vLLM ----
    {"use_beam_search", kOpenAi, "[false]"},
    {"length_penalty", kOpenAi, "[1]"},
    {"early_stopping", kOpenAi, "[false]"},
    {"include_stop_str_in_output", kOpenAi, "[false]"},
    {"min_tokens", kSglang, "[0]"},
    {"skip_special_tokens", kSglang, "[true]"},
    {"spaces_between_special_tokens", kSglang, "[true]"},
    {"truncate_prompt_tokens", kOpenAi | kTokenize, "[]"},
    {"truncation_side", kOpenAi | kTokenize, "any"},  // of what is not truncated
    {"allowed_token_ids", kOpenAi, "[]"},
    {"bad_words", kOpenAi, "[[]]"},
    {"prompt_logprobs", kOpenAi, "[]"},
    {"echo", kChat, "[false]"},
    {"best_of", kChat, "[1]"},
    {"add_generation_prompt", kChat | kTokenize, "[true]"},
    {"continue_final_message", kChat | kTokenize, "[false]"},
    {"add_special_tokens", kCompletions, "[true]"},
    {"add_special_tokens", kChat, "[false]"},
    {"documents", kChat, "[[]]"},
    {"chat_template", kChat | kTokenize, "[]"},
    {"mm_processor_kwargs", kOpenAi | kTokenize, "[{}]"},
    {"media_io_kwargs", kOpenAi | kTokenize, "[{}]"},
    {"guided_decoding_backend", kOpenAi, "any"},  // there is one
    {"guided_whitespace_pattern", kOpenAi, "[]"},
    {"structural_tag", kOpenAi | kSamplingParams, "[]"},
    {"request_id", kOpenAi, "any"},  // the answer's is X-Request-Id
    {"logits_processors", kOpenAi, "[[]]"},
    {"return_tokens_as_token_ids", kOpenAi, "[false]"},
    {"return_token_ids", kOpenAi, "[false]"},
    {"cache_salt", kText, "[]"},
    {"kv_transfer_params", kOpenAi, "[{}]"},
    {"ec_transfer_params", kOpenAi, "[{}]"},
    {"vllm_xargs", kOpenAi, "[{}]"},
    {"prompt_embeds", kCompletions, "[]"},
    {"include_reasoning", kChat, "[true]"},
    {"priority", kText, "[0]"},

    // ---- SGLang ----
    {"no_stop_trim", kSglang, "[false]"},
    {"stream_interval", kSglang, "[1]"},
    {"stop_regex", kSglang, R"([[], ""])"},
    {"min_new_tokens", kSamplingParams, "[0]"},
    {"sampling_seed", kSamplingParams, "[]"},
    {"json_schema", kGenerate, "[]"},
    {"regex", kGenerate, "[]"},
    {"ebnf", kGenerate, "[]"},
    {"custom_params", kSglang, "[{}]"},
    {"custom_logit_processor", kText, "[]"},
    {"separate_reasoning", kChat, "any"},  // reasoning_format says which here
    {"stream_reasoning", kChat, "[true]"},
    {"require_reasoning", kGenerate, "[false]"},
    {"return_hidden_states", kText, "[false]"},
    {"return_routed_experts", kText, "[false]"},
    {"routed_experts_start_len", kText, "[0]"},
    {"return_indexer_topk", kGenerate, "[false]"},
    {"return_cached_tokens_details", kOpenAi, "[false]"},
    {"return_prompt_token_ids", kText, "[false]"},
    {"return_meta_info", kOpenAi, "[false]"},
    {"return_text_in_logprobs", kGenerate, "any"},  // it always comes
    {"return_flat_raw_top_logprobs", kGenerate, "[false]"},
    {"return_flat_raw_top_logprobs_b64", kGenerate, "[false]"},
    {"return_sampling_mask", kGenerate, "[false]"},
    {"return_bytes", kGenerate, "[false]"},
    {"return_entropy", kGenerate, "[false]"},
    {"logprob_start_len", kGenerate, "[-1]"},
    {"token_ids_logprob", kGenerate, "[[]]"},
    {"background", kGenerate, "[false]"},
    {"log_metrics", kGenerate, "[true]"},
    {"no_logs", kGenerate, "[false]"},
    {"image_data", kGenerate, "[[], false]"},
    {"audio_data", kGenerate, "[[], false]"},
    {"video_data", kGenerate, "[[], false]"},
    {"input_embeds", kGenerate, "[[], false]"},
    {"modalities", kGenerate, "any"},  // of images
    {"mm_hashes", kGenerate, "[[]]"},
    {"use_audio_in_video", kChat | kGenerate, "any"},
    {"max_dynamic_patch", kChat | kGenerate, "any"},
    {"min_dynamic_patch", kChat | kGenerate, "any"},
    {"images_config", kText, "any"},
    {"lora_path", kText, "[[], false]"},
    {"lora_id", kGenerate, "[]"},
    {"rid", kOpenAi, "any"},
    {"session_id", kText, "any"},
    {"conversation_id", kText, "any"},
    {"routing_key", kText, "any"},
    {"extra_key", kText, "any"},
    {"custom_labels", kText, "any"},
    {"external_trace_header", kGenerate, "any"},
    {"received_time", kGenerate, "any"},
    {"session_params", kText, "[{}]"},
    {"ngram_corpus_id", kOpenAi, "[]"},
    {"bootstrap_host", kText, "[]"},
    {"bootstrap_port", kText, "[]"},
    {"bootstrap_room", kText, "[]"},
    {"bootstrap_pair_key", kText, "[]"},
    {"data_parallel_rank", kText, "[-1, 0]"},
    {"routed_dp_rank", kText, "[-1, 0]"},
    {"disagg_prefill_dp_rank", kText, "[-1, 0]"},

    // ---- llama.cpp ----
    {"n_predict", kOpenAi, "[-1]"},
    {"cache_prompt", kOpenAi, "any"},  // an answer is the same either way
    {"n_cache_reuse", kOpenAi, "any"},
    {"id_slot", kOpenAi, "[-1]"},
    {"n_keep", kOpenAi, "any"},  // when the context overflows, which is refused
    {"n_discard", kOpenAi, "any"},
    {"n_probs", kOpenAi, "[0]"},
    {"n_indent", kOpenAi, "[0]"},
    {"min_keep", kOpenAi, "[0]"},
    {"t_max_predict_ms", kOpenAi, "[0, -1]"},
    {"t_max_prompt_ms", kOpenAi, "[0, -1]"},
    {"repeat_penalty", kOpenAi, "[1]"},
    {"repeat_last_n", kOpenAi, "any"},  // of no penalty
    {"typical_p", kOpenAi, "[1]"},
    {"dynatemp_range", kOpenAi, "[0]"},
    {"dynatemp_exponent", kOpenAi, "any"},  // of no range
    {"xtc_probability", kOpenAi, "[0]"},
    {"xtc_threshold", kOpenAi, "any"},  // of no probability
    {"dry_multiplier", kOpenAi, "[0]"},
    {"dry_base", kOpenAi, "any"},  // these four of no multiplier
    {"dry_allowed_length", kOpenAi, "any"},
    {"dry_penalty_last_n", kOpenAi, "any"},
    {"dry_sequence_breakers", kOpenAi, "any"},
    {"mirostat", kOpenAi, "[0]"},
    {"mirostat_tau", kOpenAi, "any"},  // these two of no mirostat
    {"mirostat_eta", kOpenAi, "any"},
    {"samplers", kOpenAi, "[[]]"},
    {"tfs_z", kOpenAi, "[1]"},
    {"backend_sampling", kOpenAi, "any"},
    {"post_sampling_probs", kOpenAi, "[false]"},
    {"grammar_lazy", kOpenAi, "[false]"},
    {"lora", kOpenAi, "[[]]"},
    {"return_tokens", kOpenAi, "[false]"},
    {"return_progress", kOpenAi, "[false]"},
    {"response_fields", kOpenAi, "[[]]"},
    {"timings_per_token", kOpenAi, "[false]"},
    {"thinking_forced_open", kChat, "[false]"},
    {"parse_tool_calls", kChat, "any"},

    // ---- Of messages: what clients send back of an earlier answer, or add for other services ----
    {"refusal", kMessage, "any"},
    {"annotations", kMessage, "any"},
    {"cache_control", kMessage, "any"},
    {"provider_specific_fields", kMessage, "any"},
    {"thinking_blocks", kMessage, "any"},
    {"reasoning_details", kMessage, "any"},
    {"function_call", kMessage, "[]", "tool_calls"},
    {"audio", kMessage, "[]"},
    {"prefix", kMessage, "[false]"},
    {"partial", kMessage, "[false]"},
};
// clang-format on

}  // namespace

std::span<const KnownField> KnownFields() {
  return kFields;
}

const KnownField* FindKnownField(std::string_view name, unsigned where) {
  for (const KnownField& field : kFields) {
    if ((field.where & where) != 0 && name == field.name) return &field;
  }
  return nullptr;
}

void CheckAsksForNothing(const KnownField& field, const Json& value, const std::string& path) {
  if (field.any() || value.is_null()) return;
  const Json values = field.values();
  if (std::find(values.begin(), values.end(), value) != values.end()) return;
  if (field.instead != nullptr)
    Refuse(path, "{} is not supported by this server, which has {} instead.", path, field.instead);
  if (values.empty()) Refuse(path, "{} is not supported by this server.", path);
  Refuse(path, "{} is not supported by this server, but for {}.", path, values.dump());
}

}  // namespace loopspec::serve

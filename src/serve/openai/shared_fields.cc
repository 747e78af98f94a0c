#include "serve/openai/shared_fields.h"

#include <algorithm>

#include "fields/sampling_fields.h"

namespace loopspec::serve {

bool IsSharedField(std::string_view name) {
  static constexpr std::string_view kNames[] = {"sampler",
                                                "seed",
                                                "logit_bias",
                                                "stop_token_ids",
                                                "ignore_eos",
                                                "decode",
                                                "depths",
                                                "priority",
                                                "recurrence",
                                                "guided_json",
                                                "chat_template_kwargs",
                                                "enable_thinking",
                                                "guided_regex",
                                                "guided_choice",
                                                "structured_outputs",
                                                "max_thinking_tokens",
                                                "guided_grammar",
                                                "json_schema",
                                                "regex",
                                                "grammar",
                                                "ebnf"};
  if (std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames)) return true;
  return std::any_of(SamplingFields().begin(), SamplingFields().end(),
                     [&](const SamplingField& field) { return name == field.name; });
}

}  // namespace loopspec::serve

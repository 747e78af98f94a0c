// How likely a given text is: log-probabilities of a prompt's own tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backends/backend.h"
#include "engine/schedule/token_stream.h"

namespace loopspec {

// Prefills a chunk of `prompt` and puts the log-probability of the token after each of its
// positions into scores[position], with the `top` likeliest tokens there. Throws Error when logits
// are no numbers.
void ScorePrompt(Backend& backend, const PrefillPlan& chunk, std::span<const int32_t> prompt,
                 int top, std::vector<PromptLogprob>& scores);

}  // namespace loopspec

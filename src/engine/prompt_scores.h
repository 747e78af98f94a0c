// How likely a given text is: log-probabilities of a prompt's own tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "backends/backend.h"
#include "loopspec/request.h"
#include "loopspec/token.h"

namespace loopspec {

// Prefills a chunk of `prompt` and puts the log-probability of the token after each of its
// positions into scores[position], with the `top` likeliest tokens there; nothing: no scores.
// `on_logits` gets the logits of all depths, where it is one. Throws Error when logits to be scored
// are no numbers.
void ScorePrompt(Backend& backend, const PrefillPlan& chunk, std::span<const int32_t> prompt,
                 std::optional<int> top, const OnLogits& on_logits, std::vector<Token>& scores);

}  // namespace loopspec

// What measurements of the decoder itself ask of a request (Request::laboratory). No part of the
// library's interface: it follows the decoder, and changes with it.
#pragma once

#include <functional>
#include <optional>

#include "backends/backend.h"
#include "decode/acceptance.h"
#include "decode/assumed.h"
#include "decode/ngram_index.h"

namespace loopspec {

class LoopSpec;

struct Laboratory {
  // The paper's schedule: every draft gets a branch however unlikely it is, and every live branch
  // is a row of every step, whatever it costs. Goes with group 1 and no guesses.
  bool every_branch = false;
  std::optional<AcceptancePrior> prior = {};  // what is assumed of drafts at first
  bool adapt_rates = true;  // follow the verdicts; false for tests that need a fixed choice
  const GuessSource* guess_source = nullptr;  // of guesses; null: the text itself
  // Outcomes of verification are drawn at given rates instead of decided: a timing simulation.
  std::optional<AssumedAcceptance> assumed = {};
  bool ids_alone = false;  // tokens do not become text
  // Before and after each step that the request has rows in, by the thread that takes the engine's
  // steps. Before it is planned, other rows may be chosen or branches evicted; after it the backend
  // still has its logits.
  std::function<void(LoopSpec& decoder)> before_step = {};
  std::function<void(const StepPlan& plan, const StepResult& result)> after_step = {};
};

}  // namespace loopspec

// What measurements of the decoder itself ask of a request. No part of the library's interface: it
// follows the decoder, and changes with it.
#pragma once

#include "decode/ngram_index.h"

namespace loopspec {

struct Laboratory {
  // The paper's schedule: every draft gets a branch however unlikely it is, and every live branch
  // is a row of every step, whatever it costs. Goes with group 1 and no guesses.
  bool every_branch = false;
  bool adapt_rates = true;  // follow the verdicts; false for tests that need a fixed choice
  const GuessSource* guess_source = nullptr;  // of guesses; null: the text itself
  bool ids_alone = false;                     // tokens do not become text
};

}  // namespace loopspec

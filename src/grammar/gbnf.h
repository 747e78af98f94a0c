// llama.cpp's GBNF: rules `name ::= choices` over texts, character classes, groups and repetitions.
#pragma once

#include <string_view>

#include "grammar/threads.h"

namespace loopspec::grammar {

// Fills `rules` with the grammar, which starts at the rule `root`. Throws Error naming the line.
void ParseGbnf(std::string_view text, Rules& rules);

}  // namespace loopspec::grammar

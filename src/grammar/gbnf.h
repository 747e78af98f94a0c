// llama.cpp's GBNF: rules `name ::= choices` over texts, character classes, groups and repetitions;
// and elements of our own: schemas and free text up to a mark.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/threads.h"

namespace loopspec::grammar {

// Fills `rules` with the grammar, which starts at the rule `root`. Returns the keywords of its
// schemas that were ignored, each once. Throws Error naming the line.
std::vector<std::string> ParseGbnf(std::string_view text, const SchemaOptions& options,
                                   Rules& rules);

}  // namespace loopspec::grammar

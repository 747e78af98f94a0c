// The forms of a grammar that a request can have, described once.
#pragma once

#include <span>
#include <string>

#include "loopspec/request.h"

namespace loopspec {

struct GrammarField {
  const char* name;  // json_schema: in bodies and in Python; --json-schema in commands
  GrammarKind kind;
  const char* help;  // one sentence
};

std::span<const GrammarField> GrammarFields();
const GrammarField& GrammarFieldOf(GrammarKind kind);

// Any JSON object.
GrammarSource JsonObjectGrammar();
// One of these texts, of which there is at least one.
GrammarSource ChoiceGrammar(std::span<const std::string> choices);

}  // namespace loopspec

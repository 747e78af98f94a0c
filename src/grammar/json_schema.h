// JSON Schema to rules of a grammar.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "grammar/grammar.h"
#include "grammar/threads.h"

namespace loopspec::grammar {

// One byte of JSON's white space.
Node SpaceByte(Regular& regular);

struct CompiledSchema {
  Expression texts;                  // the JSON texts that fulfil the schema
  std::vector<std::string> ignored;  // keywords that could not be enforced
};
// Adds the rules of the schema to `rules`, whose start stays as it is.
CompiledSchema CompileSchema(const OrderedJson& schema, const SchemaOptions& options, Rules& rules);

}  // namespace loopspec::grammar

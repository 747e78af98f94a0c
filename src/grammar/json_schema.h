// JSON Schema to rules of a grammar.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "grammar/grammar.h"
#include "grammar/threads.h"

namespace loopspec::grammar {

// Fills `rules` with the JSON texts that fulfil the schema. Returns the keywords that were ignored.
std::vector<std::string> CompileSchema(const OrderedJson& schema, const SchemaOptions& options,
                                       Rules& rules);

}  // namespace loopspec::grammar

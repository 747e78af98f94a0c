// The fields of request bodies that say what an answer must be: OpenAI's response_format, vLLM's
// structured_outputs and guided_*, llama.cpp's grammar and json_schema, SGLang's regex and ebnf.
#pragma once

#include <vector>

#include "serve/openai/fields.h"

namespace loopspec::serve {

// The fields of a body's top that ask for a grammar. A request has one of them at most.
void AddGrammarFields(unsigned endpoints, std::vector<CompletionField>& fields);
// Members of SGLang's sampling_params.
void AddGrammarParams(unsigned endpoint, std::vector<CompletionField>& fields);

// The answer must be `source`. Throws ApiException where another field has asked for a grammar.
void AskForGrammar(const std::string& path, GrammarSource source, CompletionRequest& request);

// The schema that `request` refers to, as the body has it: with its properties in their order,
// which the fields' reader does not see.
void TakeSchema(std::string_view body, CompletionRequest& request);

}  // namespace loopspec::serve

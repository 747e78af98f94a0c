// OpenAI's and SGLang's requests held against a model: defaults, limits, prompts as ids.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "serve/openai/parse.h"
#include "serve/openai/text_call.h"
#include "serve/openai/types.h"

namespace loopspec::serve {

// What writes the answer, once the prompts are known.
using MakeAnswer = std::function<std::unique_ptr<AnswerWriter>(AnswerSetup setup)>;

// Throws ApiException that names the field at fault. `make`: for a chat whose answer has another
// form than OpenAI's chat completions.
TextCall Resolve(const CompletionRequest& request, const CallContext& context,
                 const MakeAnswer& make = {});

// What holds for a request that says nothing of it: what the model's generation_config asks for,
// or, where that does not say whether to sample, OpenAI's temperature of 1.
SamplingParams ServedSampling(const ModelFacts& facts);

// Reads a body now and resolves it when the model is there. `ignored`: told of fields that nobody
// knows.
ResolveCall ReadTextCall(Endpoint endpoint, std::string_view body, const WireParser& parser,
                         IgnoredFields* ignored = nullptr);

}  // namespace loopspec::serve

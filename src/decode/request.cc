#include "decode/request.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "decode/depths.h"
#include "decode/row_choice.h"
#include "fields/max_tokens.h"
#include "fields/sampling_fields.h"

namespace loopspec {

void CheckLimits(const DecodeRequest& request, const BackendLimits& limits) {
  if (request.logprobs && (*request.logprobs < 0 || *request.logprobs > limits.max_logprobs)) {
    Fail("logprobs is {}, expected 0 to {} here", *request.logprobs, limits.max_logprobs);
  }
}

std::string NameOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "none";
}

void CheckRecurrence(int recurrence, const ModelSpec& spec, std::span<const int> readout_depths) {
  if (std::find(readout_depths.begin(), readout_depths.end(), recurrence) != readout_depths.end())
    return;
  Fail(
      "recurrence is {}, expected one of {}: the model was trained for {}, and others must be "
      "named when it is loaded ({})",
      recurrence, fmt::join(readout_depths, ", "), spec.trained_recurrence,
      recurrence > spec.recurrence ? fmt::format("--recurrence {}", recurrence)
                                   : fmt::format("--recurrences {}", recurrence));
}

void CheckRequest(const DecodeRequest& request, const ModelSpec& spec,
                  const BackendOptions& backend) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) Fail("the prompt is empty: at least one token is needed");
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= spec.vocab)
      Fail("the prompt has token {}, the vocabulary has {}", token, spec.vocab);
  }
  if (request.max_tokens < 0) Fail("max-tokens is {}, expected 0 or more", request.max_tokens);
  CheckLength(prompt, request.max_tokens, spec.max_positions);
  if (request.recurrence != 0) CheckRecurrence(request.recurrence, spec, backend.readout_depths);
  CheckDepths(request.depths, RecurrenceOf(request, spec));
  CheckReadouts(request.depths, backend.readout_depths);
  if (std::ssize(request.depths) > MostDrafts(backend))
    Fail("depths {} are {}, expected at most {}", fmt::join(request.depths, ","),
         request.depths.size(), MostDrafts(backend));
  CheckSamplingParams(request.sampling, spec.vocab);
  if (request.row_budget < 0)
    Fail("max-rows is {}, expected 1 or more, or 0 for no limit", request.row_budget);
  if (request.group < 0 || request.group > kMaxGroup)
    Fail("group is {}, expected 1 to {}, or 0 to choose by cost", request.group, kMaxGroup);
}

}  // namespace loopspec

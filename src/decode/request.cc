#include "decode/request.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/field_error.h"
#include "decode/depths.h"
#include "decode/row_choice.h"
#include "fields/max_tokens.h"
#include "fields/sampling_fields.h"

namespace loopspec {

std::shared_ptr<const ResolvedRequest> Share(ResolvedRequest request, const ModelSpec& spec) {
  if (request.recurrence == 0) request.recurrence = spec.recurrence;
  // Looked up for every draft: a long list must not slow down the others in the step.
  std::sort(request.stop_tokens.begin(), request.stop_tokens.end());
  return std::make_shared<const ResolvedRequest>(std::move(request));
}

void CheckLimits(const ResolvedRequest& request, const BackendLimits& limits) {
  if (request.logprobs && (*request.logprobs < 0 || *request.logprobs > limits.max_logprobs)) {
    throw FieldError("logprobs", fmt::format("{}", *request.logprobs),
                     fmt::format("0 to {} here", limits.max_logprobs));
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
  throw FieldError(
      "recurrence", fmt::format("{}", recurrence),
      fmt::format("one of {}: the model was trained for {}, and others must be named when it is "
                  "loaded",
                  fmt::join(readout_depths, ", "), spec.trained_recurrence));
}

void CheckRequest(const ResolvedRequest& request, const ModelSpec& spec,
                  const BackendOptions& backend) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) throw FieldError("prompt", "empty", "at least one token");
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= spec.vocab)
      throw FieldError("prompt", fmt::format("a text with token {}", token),
                       fmt::format("tokens below {}, the size of the vocabulary", spec.vocab));
  }
  if (request.max_tokens < 0)
    throw FieldError("max_tokens", fmt::format("{}", request.max_tokens), "0 or more");
  CheckLength(prompt, request.max_tokens, spec.max_positions);
  if (request.recurrence != 0) CheckRecurrence(request.recurrence, spec, backend.readout_depths);
  CheckDepths(request.depths, request.recurrence > 0 ? request.recurrence : spec.recurrence);
  CheckReadouts(request.depths, backend.readout_depths);
  if (std::ssize(request.depths) > MostDrafts(backend))
    throw FieldError("depths", fmt::format("{}", fmt::join(request.depths, ",")),
                     fmt::format("at most {} of them", MostDrafts(backend)));
  CheckSamplingParams(request.sampling, spec.vocab);
  if (request.max_rows < 0)
    throw FieldError("max_rows", fmt::format("{}", request.max_rows),
                     "1 or more, or 0 for no limit");
  if (request.group < 0 || request.group > kMaxGroup)
    throw FieldError("group", fmt::format("{}", request.group),
                     fmt::format("1 to {}, or 0 to choose by cost", kMaxGroup));
}

}  // namespace loopspec

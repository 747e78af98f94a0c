#include "engine/run_request.h"

#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace loopspec {

SchedulerOptions OneAtATime(const StepCost& cost) {
  SchedulerOptions options;
  options.max_running = 1;
  options.cache_bytes = 0;
  options.cost = cost;
  return options;
}

Choice RunRequest(Scheduler& scheduler, const ResolvedRequest& request, const OnEvent& on_event) {
  LOOPSPEC_CHECK(request.choices == 1);
  const std::shared_ptr<TokenStream> stream = scheduler.Submit(request);
  Choice result;
  result.tokens.reserve(static_cast<size_t>(request.max_tokens));
  bool stopped = false;  // by the callback
  bool dropped = false;  // tokens that came after that
  StreamEvent event;
  for (;;) {
    const Stream::Status status = stream->Next(event, std::chrono::milliseconds(0));
    if (status == Stream::Status::kDone) break;
    if (status == Stream::Status::kTimeout) {
      scheduler.Step();
      continue;
    }
    const bool token = status == Stream::Status::kToken;
    dropped = dropped || (token && stopped);
    if (dropped) continue;
    if ((token || status == Stream::Status::kProgress) && !stopped && on_event &&
        !on_event(event)) {
      stopped = true;
      stream->Cancel();
    }
    result.text += event.token.text;
    if (token) result.tokens.push_back(std::move(event.token));
  }
  result.statistics = stream->statistics(0);
  if (result.statistics.finish_reason == FinishReason::kError) throw Error(result.statistics.error);
  result.statistics.decoded_tokens = std::ssize(result.tokens);
  return result;
}

}  // namespace loopspec

// One request over a scheduler without an engine, driven by the test: for backends and models that
// no folder holds.
#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include "base/error.h"
#include "engine/schedule/scheduler.h"
#include "loopspec/engine.h"

namespace loopspec {

// For schedulers that serve one request at a time and compute every prompt anew.
inline SchedulerOptions OneAtATime(const StepCost& cost = {}) {
  SchedulerOptions options;
  options.max_running = 1;
  options.cache_bytes = 0;
  options.cost = cost;
  return options;
}

// Submits and takes scheduling steps until it has ended. Throws Error for a request that cannot be
// served, and for one that fails.
inline Choice RunRequest(Scheduler& scheduler, const ResolvedRequest& request) {
  const std::shared_ptr<TokenStream> stream = scheduler.Submit(request);
  Choice result;
  result.tokens.reserve(static_cast<size_t>(request.max_tokens));  // steps allocate nothing
  StreamEvent event;
  for (Stream::Status status;
       (status = stream->Next(event, std::chrono::milliseconds(0))) != Stream::Status::kDone;) {
    if (status == Stream::Status::kTimeout) {
      scheduler.Step();
      continue;
    }
    result.text += event.token.text;
    if (status == Stream::Status::kToken) result.tokens.push_back(std::move(event.token));
  }
  result.statistics = stream->statistics(0);
  if (result.statistics.finish_reason == FinishReason::kError) throw Error(result.statistics.error);
  return result;
}

}  // namespace loopspec

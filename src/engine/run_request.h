// One request from its submission to its end, driven by the thread that wants it: for the commands
// and for measurements, which have the engine to themselves.
#pragma once

#include <functional>

#include "engine/schedule/scheduler.h"
#include "loopspec/engine.h"

namespace loopspec {

// Called for every token and while the prompt is read; return false to stop there. It is not called
// again then, and what was decided beyond that token is not part of the result.
using OnEvent = std::function<bool(const StreamEvent& event)>;

// For schedulers that serve one request at a time and compute every prompt anew.
SchedulerOptions OneAtATime(const StepCost& cost = {});

// Submits and takes scheduling steps until it has ended; `request` is for one choice, and nobody
// else drives the scheduler meanwhile. Throws Error for a request that cannot be served, and for
// one that fails.
Choice RunRequest(Scheduler& scheduler, const ResolvedRequest& request,
                  const OnEvent& on_event = {});

}  // namespace loopspec

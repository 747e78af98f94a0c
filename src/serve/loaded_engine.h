// The real engine behind the service: a loaded model and its scheduler.
#pragma once

#include <memory>

#include "loopspec/loopspec.h"
#include "serve/completion_engine.h"

namespace loopspec::serve {

struct LoadOptions {
  EngineOptions engine;
  bool warm_up = false;  // answer a short prompt before the first request comes
};

// Throws Error when the model cannot be loaded or run.
std::shared_ptr<CompletionEngine> LoadCompletionEngine(const LoadOptions& options);

}  // namespace loopspec::serve

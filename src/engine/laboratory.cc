#include "engine/laboratory.h"

#include <utility>

#include "engine/session.h"

namespace loopspec {

Engine MakeLaboratoryEngine(std::shared_ptr<const LoadedModel> loaded,
                            std::shared_ptr<Backend> backend, const StepCost& cost,
                            std::vector<std::vector<int>> depths, int64_t cache_bytes,
                            int max_running) {
  EngineOptions options;
  options.depths = std::move(depths);
  options.max_running = max_running;
  options.cache_bytes = cache_bytes;
  options.background = false;
  SessionParts parts;
  parts.backend = std::move(backend);
  parts.cost = cost;
  return Engine(std::make_unique<Session>(options, std::move(loaded), std::move(parts)));
}

void SetDecoding(const std::vector<int>& depths, bool guesses, Request& request) {
  request.decoding = !depths.empty() ? Decoding::kLoopSpec
                     : guesses       ? Decoding::kLookup
                                     : Decoding::kAutoregressive;
  request.depths.reset();
  if (!depths.empty()) request.depths = depths;
  request.guesses = guesses;
}

}  // namespace loopspec

// Engines for measurements, which take their own steps over a backend that several of them may
// share.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backends/backend.h"
#include "decode/laboratory.h"
#include "decode/step_cost.h"
#include "engine/load/loaded_model.h"
#include "loopspec/engine.h"

namespace loopspec {

// `depths`: the sets that requests may choose from. By `cache_bytes` every prompt is computed anew
// (0) or taken from the cache (-1). `max_running`: texts at a time.
Engine MakeLaboratoryEngine(std::shared_ptr<const LoadedModel> loaded,
                            std::shared_ptr<Backend> backend, const StepCost& cost,
                            std::vector<std::vector<int>> depths, int64_t cache_bytes = 0,
                            int max_running = 1);

// LoopSpec with these depths and with or without guesses; without depths prompt lookup, or
// autoregressive decoding.
void SetDecoding(const std::vector<int>& depths, bool guesses, Request& request);

// The request's laboratory, to change it.
template <typename F>
void ChangeLaboratory(Request& request, F change) {
  auto laboratory = request.laboratory ? std::make_shared<Laboratory>(*request.laboratory)
                                       : std::make_shared<Laboratory>();
  change(*laboratory);
  request.laboratory = std::move(laboratory);
}

}  // namespace loopspec

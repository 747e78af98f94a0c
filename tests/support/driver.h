// What tests of any backend share: the backend under test, and a sequence scored from its first
// token.
#pragma once

#include <cstdlib>
#include <memory>
#include <span>
#include <string>

#include "backends/backend.h"

namespace loopspec {

// The CPU backend, or the GPU's when LOOPSPEC_TEST_DEVICE=cuda.
inline std::unique_ptr<Backend> MakeTestBackend(const Model& model, const BackendOptions& options) {
  const char* device = std::getenv("LOOPSPEC_TEST_DEVICE");
  if (device != nullptr && std::string(device) == "cuda") return MakeCudaBackend(model, options, 0);
  return MakeCpuBackend(model, options);
}

inline void ScoreTokens(Backend& backend, std::span<const int32_t> tokens, const LogitsSink& sink) {
  KvLedger ledger(backend.pages(), 1, backend.window_pages());
  const SequencePages pages(ledger, static_cast<int64_t>(tokens.size()));
  backend.Score({PlanOf(pages), 0, tokens}, sink);
}

}  // namespace loopspec

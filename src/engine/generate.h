// Drives one request to its end on one backend.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backends/backend.h"
#include "decode/loopspec.h"
#include "engine/step_cost.h"
#include "kv/ledger.h"

namespace loopspec {

struct GenerateTimes {
  double prefill = 0;      // prompt, up to the first step
  double first_token = 0;  // from the start to the first decoded token
  double decode = 0;       // after the first token, as the paper counts
  // Over all steps: pre-layers, recurrences, post-layers with sampling, and the host's own work.
  double prelude = 0, recur = 0, readout = 0, host = 0;
};

struct GenerateResult {
  std::vector<CommittedToken> tokens;
  FinishReason finish_reason = FinishReason::kNone;
  DecodeStatistics statistics;
  GenerateTimes times;
  std::vector<TraceEvent> trace;

  // Tokens per second after the first one; 0 when there is only one.
  double tokens_per_second() const {
    return times.decode > 0 && tokens.size() > 1
               ? static_cast<double>(tokens.size() - 1) / times.decode
               : 0.0;
  }
};

// Called for every decoded token in order; return false to stop there.
using TokenCallback = std::function<bool(const CommittedToken& token)>;
// Called while the prompt is read, with the tokens done so far of all; return false to give up.
using PrefillCallback = std::function<bool(int64_t done, int64_t total)>;
// Called after each step with the decoder's verifying logits, for tests: see
// Generator::set_step_observer.
using StepObserver = std::function<void(const StepPlan& plan, const StepResult& result)>;

class Generator {
 public:
  // `cost`: of the backend's steps, for the choice of rows; without it rows are taken as free.
  explicit Generator(Backend& backend, const StepCost& cost = {});

  // Throws Error for a request that cannot be served, and when the logits are no numbers.
  GenerateResult Run(const DecodeRequest& request, const TokenCallback& on_token = {},
                     const PrefillCallback& on_prefill = {});

  void set_step_observer(StepObserver observer) { observer_ = std::move(observer); }
  // Called before each step is planned, for tests: may choose other rows or evict branches.
  void set_row_override(std::function<void(LoopSpec& decoder)> override) {
    override_ = std::move(override);
  }

 private:
  // False when the callback gave up.
  bool Prefill(const PrefillPlan& prompt, const PrefillCallback& on_prefill);

  Backend& backend_;
  KvLedger ledger_;
  StepPlan plan_;
  StepCostTracker cost_;
  StepObserver observer_;
  std::function<void(LoopSpec& decoder)> override_;
};

}  // namespace loopspec

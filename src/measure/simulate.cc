#include "measure/simulate.h"

#include <algorithm>

#include "base/check.h"
#include "decode/loopspec.h"

namespace loopspec {
namespace {

constexpr int kVocab = 64;
constexpr int kCells = 256;

// Advances nothing and decides nothing; keeps the sum of what its steps would cost.
class CountingBackend {
 public:
  CountingBackend(const ModelSpec& spec, const StepCost& cost, int64_t context)
      : spec_(spec), cost_(cost), context_(static_cast<double>(context)) {}

  void Step(const StepPlan& plan) {
    const int rows = static_cast<int>(plan.rows.size());
    seen_.assign(static_cast<size_t>(spec_.recurrence), false);
    int planes = 0, fresh = 0;
    for (const RowPlan& row : plan.rows) {
      planes += seen_[static_cast<size_t>(row.depth)] ? 0 : 1;
      seen_[static_cast<size_t>(row.depth)] = true;
      fresh += row.depth == 0 ? 1 : 0;
    }
    const auto readouts = static_cast<double>(plan.readouts.size());
    seconds_ +=
        cost_.step + (fresh > 0 ? cost_.prelude + fresh * cost_.prelude_row : 0) +
        (readouts > 0 ? cost_.readout + readouts * cost_.readout_row : 0) +
        plan.recurrences * (cost_.Recurrence(rows) + context_ * planes * cost_.plane_position +
                            context_ * rows * cost_.row_position);
  }
  double seconds() const { return seconds_; }

 private:
  const ModelSpec& spec_;
  const StepCost& cost_;
  double context_;
  double seconds_ = 0;
  std::vector<bool> seen_;
};

}  // namespace

SimulationResult Simulate(const SimulationRequest& request) {
  ModelSpec spec;
  spec.vocab = kVocab;
  spec.recurrence = request.recurrence;
  spec.max_positions = 1 << 30;
  BackendOptions backend;
  backend.cells = kCells;
  backend.readout_depths = request.depths;
  backend.readout_depths.push_back(request.recurrence);
  DecodeRequest decode;
  decode.prompt = {0};
  decode.max_tokens = request.tokens;
  decode.depths = request.depths;
  decode.row_budget = request.row_budget;
  decode.group = request.group;
  decode.early = request.early ? EarlyChildren::kLookup : EarlyChildren::kOff;
  decode.assume = &request.assumed;
  decode.seed = request.seed;
  decode.assumed_context = request.context;
  KvLedger ledger(PagesFor(request.tokens + 1), kCells);
  LoopSpec decoder(decode, spec, backend, ledger, request.cost);
  CountingBackend counter(spec, request.cost, request.context);
  StepPlan plan;
  std::vector<Decision> decisions;
  while (!decoder.finished()) {
    plan.Clear();
    plan.recurrences = decoder.StepsToReadout();
    decoder.Plan(plan.recurrences, plan);
    counter.Step(plan);
    decisions.assign(plan.readouts.size(), {});
    decoder.Absorb(decisions);
  }
  const DecodeStatistics& s = decoder.statistics();
  const auto per_token = [&](auto count) { return static_cast<double>(count) / request.tokens; };
  SimulationResult result;
  result.steps = per_token(s.steps);
  result.planes = per_token(s.planes);
  result.readouts = per_token(s.readout_steps);
  result.preludes = per_token(s.prelude_steps);
  result.rows = s.rows_mean();
  result.tokens_per_pass = request.recurrence / result.steps;
  result.seconds = per_token(counter.seconds());
  result.group = decoder.group();
  return result;
}

ReadBytes BytesOf(const Model& model, ComputeMode compute) {
  const ModelSpec& spec = model.spec;
  const int element = compute == ComputeMode::kF32 ? 4 : 2;
  return {static_cast<double>(model.weights.core_bytes()),
          static_cast<double>(model.weights.prelude_bytes()),
          static_cast<double>(model.weights.coda_bytes()),
          2.0 * spec.kv_size() * element * spec.core_layers};
}

StepCost CostOfReading(const ReadBytes& bytes, double bandwidth) {
  LOOPSPEC_CHECK(bandwidth > 0);
  StepCost cost;
  cost.recurrence.fill(bytes.recurrence / bandwidth);
  cost.prelude = bytes.prelude / bandwidth;
  cost.readout = bytes.readout / bandwidth;
  cost.plane_position = bytes.position / bandwidth;
  return cost;
}

double BytesPerToken(const SimulationResult& result, const ReadBytes& bytes, int64_t context) {
  return result.steps * bytes.recurrence + result.preludes * bytes.prelude +
         result.readouts * bytes.readout +
         result.planes * static_cast<double>(context) * bytes.position;
}

}  // namespace loopspec

#include "calibrate/simulate.h"

#include <algorithm>

#include "base/check.h"
#include "decode/loopspec.h"

namespace loopspec {
namespace {

constexpr int kVocab = 64;
constexpr int kCells = 256;

// Runs one decoder on a backend that advances nothing and decides nothing, and keeps the sums of
// what its steps would cost.
class CountingRun {
 public:
  CountingRun(const SimulationRequest& request, uint64_t seed, int tokens)
      : request_(request), cost_(request.cost), guesses_(request.assumed, kVocab) {
    cost_.context = request.context;
    spec_.vocab = kVocab;
    spec_.recurrence = request.recurrence;
    spec_.max_positions = 1 << 30;
    backend_.cells = kCells;
    backend_.readout_depths = request.depths;
    backend_.readout_depths.push_back(request.recurrence);
    decode_.prompt = {0};
    decode_.max_tokens = tokens;
    decode_.depths = request.depths;
    decode_.max_rows = request.max_rows;
    decode_.group = request.group;
    decode_.guesses = request.guesses;
    decode_.laboratory.guess_source = &guesses_;
    decode_.laboratory.every_branch = request.every_branch;
    if (!request.depths.empty()) decode_.prior = {request.assumed.rates, request.assumed.gate};
    decode_.seed = seed;
  }

  // Adds what the tokens cost.
  void Run(SimulationResult& sum) {
    KvLedger ledger(PagesFor(decode_.max_tokens + 1), kCells);
    LoopSpec decoder(decode_, spec_, backend_, ledger, cost_);
    const auto context = static_cast<double>(request_.context);
    double seconds = 0;
    while (!decoder.finished()) {
      plan_.Clear();
      plan_.recurrences = decoder.RecurrencesToReadout();
      decoder.Plan(plan_.recurrences, plan_);
      seconds += SecondsOf(plan_, cost_, context, seen_).total();
      Decision plain;  // of a readout whose outcome is not assumed
      plain.token = 0;
      decisions_.assign(plan_.readouts.size(), plain);
      AssumeOutcomes(request_.assumed, plan_.readouts, kVocab, decisions_);
      decoder.Absorb(decisions_);
    }
    Add(decoder, seconds, sum);
    sum.group = decoder.group();
  }

 private:
  static void Add(const LoopSpec& decoder, double seconds, SimulationResult& sum) {
    const Statistics& s = decoder.statistics();
    sum.steps += static_cast<double>(s.recurrences);
    sum.planes += static_cast<double>(s.planes);
    sum.readouts += static_cast<double>(s.readout_steps);
    sum.preludes += static_cast<double>(s.prelude_steps);
    sum.rows += static_cast<double>(s.row_recurrences);
    sum.rows_peak = std::max(sum.rows_peak, s.rows_peak);
    sum.tokens_per_pass += static_cast<double>(decoder.output().size());
    sum.seconds += seconds;
  }

  const SimulationRequest& request_;
  StepCost cost_;
  const AssumedGuesses guesses_;
  ModelSpec spec_;
  BackendOptions backend_;
  ResolvedRequest decode_;
  StepPlan plan_;
  std::vector<Decision> decisions_;
  std::vector<char> seen_;
};

}  // namespace

StepSeconds SecondsOf(const StepPlan& plan, const StepCost& cost, double context,
                      std::vector<char>& seen) {
  std::fill(seen.begin(), seen.end(), char{0});
  int planes = 0, fresh = 0;
  for (const RowPlan& row : plan.rows) {
    const auto depth = static_cast<size_t>(row.depth);
    if (seen.size() <= depth) seen.resize(depth + 1);
    planes += seen[depth] ? 0 : 1;
    seen[depth] = 1;
    fresh += row.depth == 0 ? 1 : 0;
  }
  const int rows = static_cast<int>(plan.rows.size());
  return cost.Of({.recurrences = plan.recurrences,
                  .rows = rows,
                  .row_positions = rows * context,
                  .plane_positions = planes * context,
                  .preludes = static_cast<double>(fresh),
                  .readouts = static_cast<double>(plan.readouts.size())});
}

SimulationResult Simulate(const SimulationRequest& request) {
  SimulationResult sum;
  if (request.text_tokens < 1) {
    CountingRun(request, request.seed, request.tokens).Run(sum);
  } else {
    // As many texts as have the asked tokens.
    const int texts = (request.tokens - 1) / request.text_tokens + 1;
    for (int i = 0; i < texts; ++i)
      CountingRun(request, request.seed + static_cast<uint64_t>(i), request.text_tokens).Run(sum);
  }
  const double tokens = std::max(1.0, sum.tokens_per_pass);  // the number of them so far
  sum.rows = sum.steps > 0 ? sum.rows / sum.steps : 0;
  for (double* each : {&sum.steps, &sum.planes, &sum.readouts, &sum.preludes, &sum.seconds})
    *each /= tokens;
  sum.tokens_per_pass = sum.steps > 0 ? request.recurrence / sum.steps : 0;
  return sum;
}

ReadBytes BytesOf(const Model& model, ComputeMode compute) {
  const ModelSpec& spec = model.spec;
  const int element = compute == ComputeMode::kF32 ? 4 : 2;
  return {static_cast<double>(model.weights.core_bytes()),
          static_cast<double>(model.weights.prelude_bytes()),
          static_cast<double>(model.weights.coda_bytes()),
          2.0 * spec.kv_size() * element * spec.core_layers,
          2.0 * spec.kv_size() * element * spec.prelude_layers,
          2.0 * spec.kv_size() * element * spec.coda_layers};
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
  const auto positions = static_cast<double>(context);
  return result.steps * bytes.recurrence +
         result.preludes * (bytes.prelude + positions * bytes.prelude_position) +
         result.readouts * (bytes.readout + positions * bytes.readout_position) +
         result.planes * positions * bytes.position;
}

}  // namespace loopspec

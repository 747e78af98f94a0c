#include "measure/calibrate.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/error.h"
#include "decode/ngram_index.h"
#include "kv/ledger.h"
#include "sampling/filters.h"

namespace loopspec {
namespace {

constexpr double kLogitsBytes = 64e6;  // of all depths that are kept at once
constexpr int kMostChunk = 64;
// Values that are looked at for each position, over all sets of depths: beyond, only some positions
// count for the sampled rates.
constexpr double kCascadeWork = 4e10;
constexpr double kWorthGuessing = 0.1;  // rates of guesses that get no row are no guesses

DepthRates Empty(const std::vector<int>& depths) {
  return {depths, std::vector<double>(depths.size()), std::vector<double>(depths.size() - 1)};
}

// The filtered distributions of all depths over the tokens that any of them keeps.
PositionReadouts Readouts(std::span<const std::vector<float>> logits,
                          const SamplingParams& sampling) {
  PositionReadouts out;
  std::vector<std::vector<float>> filtered(logits.begin(), logits.end());
  FilterScratch scratch;
  const size_t vocab = logits[0].size();
  std::vector<char> kept(vocab);
  for (size_t r = 0; r < logits.size(); ++r) {
    out.choices.push_back(ArgMax(logits[r]));
    FilteredSoftmax(sampling, filtered[r], scratch);
    for (size_t v = 0; v < vocab; ++v) kept[v] |= filtered[r][v] > 0.0f ? 1 : 0;
  }
  std::vector<size_t> tokens;
  for (size_t v = 0; v < vocab; ++v) {
    if (kept[v]) tokens.push_back(v);
  }
  out.support = tokens.size();
  out.probabilities.reserve(tokens.size() * logits.size());
  for (const std::vector<float>& p : filtered) {
    double sum = 0;
    for (const size_t v : tokens) sum += p[v];
    for (const size_t v : tokens) out.probabilities.push_back(p[v] / sum);
  }
  return out;
}

void Divide(std::vector<double>& sums, double by) {
  for (double& sum : sums) sum = by > 0 ? sum / by : 0;
}

double MeanGate(const DepthRates& rates) {
  double sum = 0;
  for (const double gate : rates.gate) sum += gate;
  return rates.gate.empty() ? 0 : sum / static_cast<double>(rates.gate.size());
}

}  // namespace

DepthProfiler::DepthProfiler(Backend& backend, const SamplingParams& sampling,
                             const std::vector<std::vector<int>>& sets)
    : backend_(backend), sampling_(sampling) {
  const int recurrence = backend.spec().recurrence;
  LOOPSPEC_CHECK(static_cast<int>(backend.options().readout_depths.size()) == recurrence);
  LOOPSPEC_CHECK(!sampling.greedy());
  sums_.recurrence = recurrence;
  for (DepthCurve* curve : {&sums_.prompts, &sums_.generated}) {
    curve->agreement.resize(static_cast<size_t>(recurrence));
    curve->distance.resize(static_cast<size_t>(recurrence));
  }
  for (const std::vector<int>& depths : sets) {
    sums_.greedy.push_back(Empty(depths));
    sums_.sampled.push_back(Empty(depths));
  }
}

void DepthProfiler::Add(const CalibrationText& text,
                        const std::function<void(int64_t done)>& progress) {
  const auto depths = static_cast<size_t>(sums_.recurrence);
  const auto vocab = static_cast<size_t>(backend_.spec().vocab);
  const auto count = static_cast<int64_t>(text.tokens.size());
  const auto fitting =
      static_cast<int64_t>(kLogitsBytes / (static_cast<double>(depths * vocab) * sizeof(float)));
  const int64_t chunk = std::clamp<int64_t>(fitting, 1, kMostChunk);
  std::vector<std::vector<float>> logits(static_cast<size_t>(chunk) * depths);
  KvLedger ledger(backend_.pages(), 1);
  const SequencePages pages(ledger, count);
  for (int64_t start = 0; start < count; start += chunk) {
    const int64_t n = std::min(chunk, count - start);
    const std::span<const int32_t> part =
        std::span(text.tokens).subspan(static_cast<size_t>(start), static_cast<size_t>(n));
    int32_t bad_position = -1, bad_depth = 0;
    backend_.Score(
        {{pages.pages().data()}, static_cast<int32_t>(start), part},
        [&](int32_t position, int32_t readout, std::span<const float> row) {
          // Told below: nothing may be thrown from in here.
          if (bad_position < 0 && !AllFinite(row)) {
            bad_position = position;
            bad_depth = readout + 1;
          }
          logits[static_cast<size_t>(position - start) * depths + static_cast<size_t>(readout)]
              .assign(row.begin(), row.end());
        });
    if (bad_position >= 0) {
      Fail("the logits at position {}, depth {} hold NaN or infinity: are the weights damaged?",
           bad_position, bad_depth);
    }
    for (int64_t i = 0; i < n; ++i) {
      // The last prompt token is where the model's own text begins; the last token of all decides
      // nothing that was written.
      const bool generated = start + i >= text.prompt - 1;
      if (generated && start + i + 1 == count) continue;
      AddPosition(std::span(logits).subspan(static_cast<size_t>(i) * depths, depths), generated);
      if (generated) context_sum_ += static_cast<double>(start + i);
    }
    if (progress) progress(start + n);
  }
  AddGuesses(text);
}

void DepthProfiler::AddPosition(std::span<const std::vector<float>> logits, bool generated) {
  const PositionReadouts readouts = Readouts(logits, sampling_);
  DepthCurve& curve = generated ? sums_.generated : sums_.prompts;
  ++curve.positions;
  for (int depth = 1; depth <= sums_.recurrence; ++depth) {
    const size_t i = static_cast<size_t>(depth) - 1;
    curve.agreement[i] += readouts.choices[i] == readouts.choices.back() ? 1 : 0;
    curve.distance[i] += TotalVariation(readouts.At(depth), readouts.At(sums_.recurrence));
  }
  if (!generated) return;
  for (DepthRates& rates : sums_.greedy) AddGreedy(readouts, rates);
  // Full vocabularies and hundreds of sets are too much for every position: then a few are taken,
  // evenly.
  const double work = 8.0 * static_cast<double>(readouts.support * sums_.sampled.size());
  const auto every = static_cast<int64_t>(std::max(1.0, std::ceil(work * 4096 / kCascadeWork)));
  if (seen_++ % every != 0) return;
  ++sums_.cascade_positions;
  for (DepthRates& rates : sums_.sampled) AddCascade(readouts, rates);
}

// What a decoder would have guessed, with rates that follow what was right so far.
void DepthProfiler::AddGuesses(const CalibrationText& text) {
  NgramIndex index(static_cast<int64_t>(text.tokens.size()));
  GuessRates rates;
  for (size_t i = 0; i < text.tokens.size(); ++i) {
    if (static_cast<int64_t>(i) >= text.prompt) {
      const Guess guess = index.Find({});
      ++asked_;
      if (guess.token >= 0) {
        const bool right = guess.token == text.tokens[i];
        if (rates.Of(guess.match) > kWorthGuessing) {
          ++guesses_;
          right_ += right ? 1 : 0;
        }
        rates.Observe(guess.match, right);
      }
    }
    index.Push(text.tokens[i]);
  }
}

DepthProfile DepthProfiler::Finish() const {
  DepthProfile profile = sums_;
  for (DepthCurve* curve : {&profile.prompts, &profile.generated}) {
    Divide(curve->agreement, static_cast<double>(curve->positions));
    Divide(curve->distance, static_cast<double>(curve->positions));
  }
  const auto divide = [](std::vector<DepthRates>& list, int64_t by) {
    for (DepthRates& rates : list) {
      Divide(rates.accepted, static_cast<double>(by));
      Divide(rates.gate, static_cast<double>(by));
    }
  };
  divide(profile.greedy, profile.generated.positions);
  divide(profile.sampled, profile.cascade_positions);
  const auto generated = static_cast<double>(std::max<int64_t>(1, profile.generated.positions));
  profile.context = context_sum_ / generated;
  profile.guess_offered = asked_ > 0 ? guesses_ / asked_ : 0;
  profile.guess_right = guesses_ > 0 ? right_ / guesses_ : 0;
  return profile;
}

Prediction PredictAutoregressive(int recurrence, const PredictionRequest& request) {
  SimulationRequest plain;
  plain.recurrence = recurrence;
  plain.context = request.context;
  plain.tokens = 200;  // every token is like the other
  plain.cost = request.cost;
  Prediction prediction;
  prediction.simulation = Simulate(plain);
  prediction.tokens_per_second = 1 / prediction.simulation.seconds;
  if (request.bandwidth > 0) {
    prediction.bound_share = BytesPerToken(prediction.simulation, request.bytes, request.context) /
                             request.bandwidth / prediction.simulation.seconds;
  }
  return prediction;
}

Prediction PredictSpeed(const DepthRates& rates, int recurrence, const PredictionRequest& request,
                        const Prediction& autoregressive, bool budgets) {
  SimulationRequest simulation;
  simulation.recurrence = recurrence;
  simulation.depths = rates.depths;
  simulation.assumed.rates = rates.accepted;
  simulation.assumed.gate = MeanGate(rates);
  simulation.assumed.guess_offered = request.guess_offered;
  simulation.assumed.guess_right = request.guess_right;
  simulation.early = request.guess_offered > 0;
  simulation.context = request.context;
  simulation.tokens = request.tokens;
  simulation.group = 0;
  simulation.cost = request.cost;
  Prediction prediction;
  prediction.depths = rates.depths;
  prediction.rates = rates;
  prediction.simulation = Simulate(simulation);
  for (const int budget : {2, 4, 8, 16, 32}) {
    if (!budgets) break;
    simulation.row_budget = budget;
    const SimulationResult limited = Simulate(simulation);
    // Not for a gain within the error of the simulation.
    if (limited.seconds > 0.98 * prediction.simulation.seconds) continue;
    prediction.simulation = limited;
    prediction.row_budget = budget;
  }
  const double seconds = prediction.simulation.seconds;
  prediction.tokens_per_second = 1 / seconds;
  prediction.speedup = prediction.tokens_per_second / autoregressive.tokens_per_second;
  if (request.bandwidth > 0) {
    prediction.bound_share = BytesPerToken(prediction.simulation, request.bytes, request.context) /
                             request.bandwidth / seconds;
  }
  return prediction;
}

std::optional<PowerLawEnvelope> FitProfile(const DepthProfile& profile, std::string* why) {
  std::vector<DepthDistance> points;
  for (const DepthCurve* curve : {&profile.prompts, &profile.generated}) {
    if (curve->positions == 0) continue;
    for (int depth = 1; depth < profile.recurrence; ++depth)
      points.push_back({depth, std::min(1.0, curve->distance[static_cast<size_t>(depth) - 1])});
  }
  try {
    return FitEnvelope(points);
  } catch (const Error& error) {
    if (why != nullptr) *why = error.what();
    return std::nullopt;
  }
}

}  // namespace loopspec

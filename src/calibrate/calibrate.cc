#include "calibrate/calibrate.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/error.h"
#include "decode/ngram_index.h"

namespace loopspec {
namespace {

// Values that are looked at for each position, over all sets of depths: beyond, only some positions
// count for the sampled rates.
constexpr double kCascadeWork = 4e10;
constexpr double kWorthGuessing = 0.4;  // less likely guesses rarely get a row

DepthRates Empty(const std::vector<int>& depths) {
  return {depths, std::vector<double>(depths.size()), std::vector<double>(depths.size() - 1)};
}

void Divide(std::vector<double>& sums, double by) {
  for (double& sum : sums) sum = by > 0 ? sum / by : 0;
}

}  // namespace

DepthProfiler::DepthProfiler(Backend& backend, const SamplingParams& sampling,
                             const std::vector<std::vector<int>>& sets)
    : backend_(backend), team_(backend.options().threads), sampling_(sampling) {
  // Shares of the work are unequal, so a member that waits is no sign of a busy core.
  team_.FixTeam(team_.size());
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
  const auto count = static_cast<int64_t>(text.tokens.size());
  ReadOutText(backend_, team_, text.tokens, static_cast<size_t>(text.first), sampling_,
              [&](size_t at, const PositionReadouts& readouts) {
                const auto position = static_cast<int64_t>(at);
                if (progress) progress(position + 1 - text.first);
                // The last prompt token is where the model's own text begins; the last token of all
                // decides nothing that was written.
                const bool generated = position >= text.prompt - 1;
                if (generated && position + 1 == count) return true;
                AddPosition(readouts, generated);
                if (generated) context_sum_ += static_cast<double>(position);
                return true;
              });
  AddGuesses(text);
}

void DepthProfiler::AddPosition(const PositionReadouts& readouts, bool generated) {
  DepthCurve& curve = generated ? sums_.generated : sums_.prompts;
  ++curve.positions;
  for (int depth = 1; depth <= sums_.recurrence; ++depth) {
    const size_t i = static_cast<size_t>(depth) - 1;
    curve.agreement[i] += readouts.choices[i] == readouts.choices.back() ? 1 : 0;
    curve.distance[i] += readouts.distances[i];
  }
  if (!generated) return;
  for (DepthRates& rates : sums_.greedy) AddGreedy(readouts, rates);
  // Full vocabularies and hundreds of sets are too much for every position: then a few are taken,
  // evenly.
  const double work = 8.0 * static_cast<double>(readouts.support * sums_.sampled.size());
  const auto every = static_cast<int64_t>(std::max(1.0, std::ceil(work * 4096 / kCascadeWork)));
  if (seen_++ % every != 0) return;
  ++sums_.cascade_positions;
  team_.Run([&](Worker& worker) {
    for (auto i = static_cast<size_t>(worker.index()); i < sums_.sampled.size();
         i += static_cast<size_t>(worker.count()))
      AddCascade(readouts, sums_.sampled[i]);
  });
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

int DepthProfile::zeros() const {
  return generated.distance.empty()
             ? 0
             : static_cast<int>(
                   std::count(generated.distance.begin(), generated.distance.end() - 1, 0.0));
}

AcceptancePrior PriorOf(const DepthRates& rates) {
  double gates = 0;
  for (const double gate : rates.gate) gates += gate;
  return {rates.accepted, rates.gate.empty() ? 0 : gates / static_cast<double>(rates.gate.size())};
}

Prediction PredictAutoregressive(int recurrence, const PredictionRequest& request) {
  SimulationRequest plain;
  plain.recurrence = recurrence;
  plain.context = request.context;
  plain.tokens = 200;  // every token is like the other
  plain.text_tokens = request.text_tokens;
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
  const AcceptancePrior prior = PriorOf(rates);
  simulation.assumed.rates = prior.rates;
  simulation.assumed.gate = prior.gate;
  simulation.assumed.guess_offered = request.guess_offered;
  simulation.assumed.guess_right = request.guess_right;
  simulation.guesses = request.guess_offered > 0;
  simulation.context = request.context;
  simulation.tokens = request.tokens;
  simulation.text_tokens = request.text_tokens;
  simulation.group = 0;
  simulation.cost = request.cost;
  Prediction prediction;
  prediction.depths = rates.depths;
  prediction.rates = rates;
  prediction.simulation = Simulate(simulation);
  for (const int budget : {2, 4, 8, 16, 32}) {
    if (!budgets) break;
    simulation.max_rows = budget;
    const SimulationResult limited = Simulate(simulation);
    // Not for a gain within the error of the simulation.
    if (limited.seconds > 0.98 * prediction.simulation.seconds) continue;
    prediction.simulation = limited;
    prediction.max_rows = budget;
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

std::vector<Prediction> PredictSpeeds(std::span<const DepthRates> list, int recurrence,
                                      const PredictionRequest& request,
                                      const Prediction& autoregressive, bool budgets,
                                      ThreadPool& team,
                                      const std::function<bool(size_t done)>& progress) {
  std::vector<Prediction> predictions(list.size());
  const size_t batch = 2 * static_cast<size_t>(team.size());
  for (size_t begin = 0; begin < list.size(); begin += batch) {
    const size_t end = std::min(list.size(), begin + batch);
    team.Run([&](Worker& worker) {
      for (size_t i = begin + static_cast<size_t>(worker.index()); i < end;
           i += static_cast<size_t>(worker.count()))
        predictions[i] = PredictSpeed(list[i], recurrence, request, autoregressive, budgets);
    });
    if (progress && !progress(end)) break;
  }
  return predictions;
}

std::optional<PowerLawEnvelope> FitProfile(const DepthProfile& profile, std::string* why) {
  std::vector<DepthDistance> points;
  for (int depth = 1; depth < profile.recurrence && profile.generated.positions > 0; ++depth)
    points.push_back(
        {depth, std::min(1.0, profile.generated.distance[static_cast<size_t>(depth) - 1])});
  try {
    return FitEnvelope(points);
  } catch (const Error& error) {
    if (why != nullptr) *why = error.what();
    return std::nullopt;
  }
}

}  // namespace loopspec

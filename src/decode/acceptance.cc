#include "decode/acceptance.h"

#include <algorithm>

namespace loopspec {
namespace {

constexpr double kPriorWeight = 12;        // verdicts that the prior counts for
constexpr double kMemory = 1 - 1.0 / 200;  // verdicts fade, so that rates follow the text

// P(a draft exists at proposal depth `index` | the outcome), in a plain model of the gate: it opens
// for the draft that will win, for half of those where nothing recorded so far will, and for the
// rest just so often that it opens at the prior's rate in all.
double DraftGiven(int index, size_t outcome, std::span<const double> rates, double gate) {
  if (index == 0) return 1.0;
  double before = 0, after = 0;
  for (size_t i = 0; i < rates.size(); ++i) {
    if (i < static_cast<size_t>(index)) before += rates[i];
    if (i > static_cast<size_t>(index)) after += rates[i];
  }
  if (outcome == static_cast<size_t>(index)) return 1.0;
  if (outcome > static_cast<size_t>(index)) return 0.5;
  const double open = gate - rates[static_cast<size_t>(index)] - 0.5 * after;
  return std::clamp(before > 0 ? open / before : 0.0, 0.01, 0.99);
}

}  // namespace

AcceptanceRates::AcceptanceRates(int proposals, const AcceptancePrior& prior)
    : proposals_(proposals), outcomes_(static_cast<size_t>(proposals) + 1) {
  std::vector<double> rates;
  double rest = 1.0;
  for (int j = 0; j < proposals; ++j) {
    const auto i = static_cast<size_t>(j);
    const double rate = i < prior.rates.size() ? prior.rates[i]
                        : rates.empty()        ? 0
                                               : rates[i - 1] / 7;
    rates.push_back(std::min(rate, 0.98 * rest));
    rest -= rates.back();
  }
  rates.push_back(rest);
  counts_.resize((size_t{2} << proposals) * outcomes_);
  for (int passed = 0; passed <= proposals; ++passed) {
    for (uint32_t drafted = 0; drafted < (1u << passed); ++drafted) {
      double* counts = &counts_[Stage(passed, drafted) * outcomes_];
      double total = 0;
      for (size_t outcome = 0; outcome < outcomes_; ++outcome) {
        double p = rates[outcome];
        for (int j = 0; j < passed; ++j) {
          const double drafts = DraftGiven(j, outcome, rates, prior.gate);
          p *= (drafted >> j & 1) != 0 ? drafts : 1 - drafts;
        }
        total += counts[outcome] = p;
      }
      // A stage that cannot be (no first draft) keeps the fallback alone.
      if (total <= 0) total = counts[outcomes_ - 1] = 1.0;
      for (size_t outcome = 0; outcome < outcomes_; ++outcome)
        counts[outcome] *= kPriorWeight / total;
    }
  }
}

size_t AcceptanceRates::Stage(int passed, uint32_t drafted) const {
  return (size_t{1} << passed) | (drafted & ((1u << passed) - 1));
}

double AcceptanceRates::Of(int passed, uint32_t drafted, int index) const {
  const double* counts = &counts_[Stage(passed, drafted) * outcomes_];
  double total = 0;
  for (size_t outcome = 0; outcome < outcomes_; ++outcome) total += counts[outcome];
  return counts[index] / total;
}

double AcceptanceRates::Share(int index) const {
  return Of(0, 0, index);
}

void AcceptanceRates::Observe(uint32_t drafted, int accepted) {
  const size_t outcome = accepted < 0 ? outcomes_ - 1 : static_cast<size_t>(accepted);
  for (int passed = 0; passed <= proposals_; ++passed) {
    double* counts = &counts_[Stage(passed, drafted) * outcomes_];
    for (size_t i = 0; i < outcomes_; ++i) counts[i] *= kMemory;
    counts[outcome] += 1;
  }
}

void GuessRates::Observe(int match, bool right) {
  hits_[match] = hits_[match] * kMemory + (right ? 1 : 0);
  trials_[match] = trials_[match] * kMemory + 1;
}

}  // namespace loopspec

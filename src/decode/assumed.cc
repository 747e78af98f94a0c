#include "decode/assumed.h"

#include <algorithm>

namespace loopspec {
namespace {

constexpr uint32_t kOutcomePurpose = 1u << 29;
constexpr uint32_t kGatePurpose = kOutcomePurpose + 1;  // + the proposal
constexpr uint32_t kGuessPurpose = kOutcomePurpose + 64;

// Which proposal is accepted at this position; the number of rates when none is.
int Outcome(const AssumedAcceptance& assumed, const DrawKey& key) {
  double u = Uniform(key, kOutcomePurpose);
  int outcome = 0;
  for (const double rate : assumed.rates) {
    if (u < rate) break;
    u -= rate;
    ++outcome;
  }
  return outcome;
}

bool GateOpens(const AssumedAcceptance& assumed, const DrawKey& key, int proposal, int outcome) {
  if (outcome == proposal) return true;
  if (assumed.gate <= 0) return false;
  double before = 0, after = 1;
  for (size_t i = 0; i < assumed.rates.size(); ++i) {
    if (static_cast<int>(i) < proposal) before += assumed.rates[i];
    if (static_cast<int>(i) <= proposal) after -= assumed.rates[i];
  }
  const double own = assumed.rates[static_cast<size_t>(proposal)];
  const double chance =
      outcome > proposal
          ? 0.5
          : (before > 0 ? std::max(0.0, assumed.gate - own - 0.5 * after) / before : 0);
  return Uniform(key, kGatePurpose + static_cast<uint32_t>(proposal)) < chance;
}

// The token that proposal number `which` drafts at a position; one more is the fallback's.
int32_t TokenOf(const DrawKey& key, int which, int vocab) {
  return static_cast<int32_t>((key.position + static_cast<uint32_t>(which)) %
                              static_cast<uint32_t>(vocab));
}

void AssumeOutcome(const AssumedAcceptance& assumed, const ReadoutPlan& readout, int vocab,
                   Decision& decision) {
  const DrawKey& key = readout.draw;
  const int outcome = Outcome(assumed, key);
  if (readout.purpose == ReadoutPurpose::kPropose) {
    decision.gate_open =
        readout.proposal == 0 || GateOpens(assumed, key, readout.proposal, outcome);
    decision.token = decision.gate_open ? TokenOf(key, readout.proposal, vocab) : -1;
    return;
  }
  if (readout.recorded_count == 0) return;
  decision.accepted = -1;
  decision.token = TokenOf(key, static_cast<int>(assumed.rates.size()), vocab);
  for (int i = 0; i < readout.recorded_count; ++i) {
    if (readout.recorded[i].proposal != outcome) continue;
    decision.accepted = i;
    decision.token = readout.recorded[i].token;
  }
}

}  // namespace

void AssumeOutcomes(const AssumedAcceptance& assumed, std::span<const ReadoutPlan> readouts,
                    int vocab, std::span<Decision> decisions) {
  for (size_t i = 0; i < decisions.size(); ++i)
    AssumeOutcome(assumed, readouts[i], vocab, decisions[i]);
}

Guess AssumedGuesses::At(const DrawKey& token) const {
  if (Uniform(token, kGuessPurpose) >= assumed_.guess_offered) return {};
  // What the first proposal will draft, or a token that no proposal drafts.
  const bool right = Uniform(token, kGuessPurpose + 1) < assumed_.guess_right;
  const int which = right ? 0 : static_cast<int>(assumed_.rates.size()) + 1;
  return {TokenOf(token, which, vocab_), GuessRates::kLongestMatch};
}

}  // namespace loopspec
